"""The screen that comes with Headrace: MiniLM's vectors and character n-grams under a head of ours.

docs/screening.md is its card: data, licences, figures for each file, limits.
"""

from collections.abc import Sequence

from headrace.core.screening import Verdict
from headrace.models.repository import Repository
from headrace.preprocess.screen.encoder import TextWindow, WindowEncoder
from headrace.preprocess.screen.head import Head, load_head

MODEL = "minilm"


class MiniLmScreen:
    """Categories harm, injection, toxicity."""

    def __init__(self, encoder: WindowEncoder, head: Head) -> None:
        self._encoder = encoder
        self._head = head

    @property
    def name(self) -> str:
        return self._head.name

    def split(self, text: str) -> Sequence[TextWindow]:
        """Windows of 126 tokens."""
        return self._encoder.split(text)

    def judge(self, windows: Sequence[TextWindow]) -> list[Verdict]:
        """One verdict a window."""
        return self._head.verdicts(self._encoder.vectors(windows), [window.text for window in windows])


def load(repository: Repository, threads: int) -> MiniLmScreen:
    """Raises ModelNotFound where the encoder is not installed (`headrace models add minilm`)."""
    return MiniLmScreen(WindowEncoder(repository.get(MODEL), threads), load_head())
