"""A lease: whoever has it leads until it ends. The port, and what its stores have in common."""

from typing import Protocol


class Lease(Protocol):
    """Held by one holder at a time, for as long as it is renewed. Methods may block for a moment; any thread."""

    def take(self, holder: str, ttl_s: float) -> bool:
        """Takes the lease, or renews one's own, from now on. False while another has it. Raises Unavailable where the
        store does not answer."""

    def give_back(self, holder: str) -> None:
        """Lets the next one take it at once; nothing where another has it. Raises Unavailable."""
