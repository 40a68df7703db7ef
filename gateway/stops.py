"""Stop strings over streaming text: what may still become a stop string is held back, nothing more."""

from collections.abc import Sequence


class StopStrings:
    """The answer ends where the first stop string is complete; the text before it is emitted, it is not.

    Of several that are complete at the same character the longest counts. So the cut does not depend on how the text
    was split into pushes.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The text that is safe to emit now. After a hit always ''."""
        if self.hit:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.hit, self._held = True, ""
            return text[: min(ends)[1]]
        safe = len(text) - self._overlap(text)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
