"""Prompts as token ids of exact lengths: from made-up text, or from a folder of recorded prompts."""

import gzip
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from headrace.benchmarks.texts import sentences
from headrace.core.errors import InvalidRequest


class Prompts:
    """Draws prompts that never repeat: one stream of text is tokenised and cut."""

    def __init__(self, tokenizer: Path, seed: int, recorded: Path | None = None) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._ids = self._token_ids(recorded_texts(recorded, seed) if recorded else sentences(seed))

    def _token_ids(self, texts: Iterator[str]) -> Iterator[int]:
        while chunk := list(
            itertools.islice(texts, 256)
        ):  # tokenised many at a time: the library runs them in parallel
            for encoding in self._tokenizer.encode_batch(chunk, add_special_tokens=False):
                yield from encoding.ids

    def draw(self, num_tokens: int) -> list[int]:
        """The next prompt, `num_tokens` long."""
        return list(itertools.islice(self._ids, num_tokens))

    def endless(self, num_tokens: int) -> Iterator[list[int]]:
        """Prompts as they are wanted."""
        while True:
            yield self.draw(num_tokens)

    def draw_many(self, count: int, num_tokens: int) -> list[list[int]]:
        return [self.draw(num_tokens) for _ in range(count)]


def recorded_texts(folder: Path, seed: int) -> Iterator[str]:
    """The texts of every prompts/*.jsonl.gz under a workloads folder, shuffled, then again in another order, endlessly.

    Raises InvalidRequest where there are none.
    """
    files = sorted((folder / "prompts").glob("*.jsonl.gz"))
    texts = [text for file in files for text in _texts_of(file)]
    if not texts:
        raise InvalidRequest(f"no prompts/*.jsonl.gz with texts under {folder}", field="workloads")
    shuffler = random.Random(seed)
    while True:
        shuffler.shuffle(texts)
        yield from texts


def _texts_of(file: Path) -> Sequence[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        text for row in rows for key in ("prompt", "text", "question") if isinstance(text := row.get(key), str) and text
    ]
