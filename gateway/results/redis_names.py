"""What a store's parts are called in Redis."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of one store."""

    prefix: str

    @property
    def running(self) -> str:
        return f"{self.prefix}s:running"

    @property
    def ended(self) -> str:
        return f"{self.prefix}s:ended"

    @property
    def bytes(self) -> str:
        return f"{self.prefix}s:bytes"

    def key(self, handle: str) -> str:
        return f"{self.prefix}:{handle}"

    def pieces(self, handle: str) -> str:
        return f"{self.prefix}:{handle}:pieces"

    def request(self, handle: str) -> str:
        return f"{self.prefix}:{handle}:request"

    def tenant(self, tenant: str) -> str:
        return f"{self.prefix}s:of:{tenant}"
