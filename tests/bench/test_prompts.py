"""Prompts: exact lengths, the same for the same seed, recorded texts where a folder is named."""

import gzip
import itertools
import json
from pathlib import Path

import pytest

from headrace.benchmarks.prompts import Prompts, recorded_texts
from headrace.benchmarks.texts import sentences
from headrace.core.errors import InvalidRequest
from headrace.models.reference import byte_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_tokenizer().to_str(), encoding="utf-8")
    return file


def test_prompts_have_the_length_asked_for_and_do_not_repeat(tokenizer: Path) -> None:
    drawn = Prompts(tokenizer, seed=1).draw_many(200, 48)
    assert {len(prompt) for prompt in drawn} == {48}
    assert len({tuple(prompt) for prompt in drawn}) == 200


def test_a_seed_gives_the_same_prompts(tokenizer: Path) -> None:
    assert Prompts(tokenizer, 1).draw(300) == Prompts(tokenizer, 1).draw(300) != Prompts(tokenizer, 2).draw(300)


def test_text_is_whole_sentences() -> None:
    for text in itertools.islice(sentences(3), 200):
        assert text[0].isupper()
        assert text[-1] in ".?"


def test_recorded_texts_are_used_where_named(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    with gzip.open(tmp_path / "prompts" / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        for text in ("aaaa", "bb"):
            file.write(json.dumps({"prompt": text}) + "\n")
        file.write(json.dumps({"document": "not a prompt"}) + "\n")
    assert set(itertools.islice(recorded_texts(tmp_path, 1), 40)) == {"aaaa", "bb"}
    assert set(Prompts(tokenizer, 1, tmp_path).draw(60)) == {ord("a"), ord("b")}


def test_a_folder_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no prompts"):
        next(recorded_texts(tmp_path, 1))
