"""Sampling settings: each bound from both sides."""

import math
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.request import (
    MAX_ANSWERS,
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    Sampling,
)

VOCAB_SIZE = 512
WARM = Sampling(temperature=1.0)

GOOD: list[dict[str, Any]] = [
    {},
    {"max_tokens": 1},
    {"max_tokens": 10**9},
    {"min_tokens": 0},
    {"max_tokens": 7, "min_tokens": 7},
    {"temperature": 100.0},
    {"temperature": 1e-6},
    {"top_k": 0},
    {"top_k": VOCAB_SIZE},
    {"top_p": 1.0},
    {"top_p": 1e-6},
    {"min_p": 0.0},
    {"min_p": 1.0},
    {"repetition_penalty": 1e-6},
    {"repetition_penalty": 10.0},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"presence_penalty": 2.0, "frequency_penalty": -2.0},
    {"seed": 0},
    {"seed": MAX_SEED},
    {"n": MAX_ANSWERS},
    {"logprobs": 0},
    {"logprobs": MAX_LOGPROBS},
    {"stop": ("a",) * MAX_STOP_STRINGS},
    {"stop": ("x" * MAX_STOP_BYTES,)},
    {"stop_token_ids": (0, VOCAB_SIZE - 1)},
    {"stop_token_ids": (1,) * MAX_STOP_TOKEN_IDS},
    {"temperature": 0.0, "top_k": 1},
    {"temperature": 0.0, "repetition_penalty": 1.5},
]

BAD: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"max_tokens": 7, "min_tokens": 8}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 100.1}),
    ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": math.inf}),
    ("top_k", {"top_k": -1}),
    ("top_k", {"top_k": VOCAB_SIZE + 1}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.1}),
    ("top_p", {"top_p": math.nan}),
    ("min_p", {"min_p": -0.1}),
    ("min_p", {"min_p": 1.1}),
    ("min_p", {"min_p": math.nan}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": -1.0}),
    ("repetition_penalty", {"repetition_penalty": 10.1}),
    ("repetition_penalty", {"repetition_penalty": math.nan}),
    ("presence_penalty", {"presence_penalty": 2.1}),
    ("presence_penalty", {"presence_penalty": -2.1}),
    ("presence_penalty", {"presence_penalty": math.nan}),
    ("frequency_penalty", {"frequency_penalty": 2.1}),
    ("frequency_penalty", {"frequency_penalty": -2.1}),
    ("frequency_penalty", {"frequency_penalty": math.nan}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": MAX_SEED + 1}),
    ("n", {"n": 0}),
    ("n", {"n": MAX_ANSWERS + 1}),
    ("logprobs", {"logprobs": -1}),
    ("logprobs", {"logprobs": MAX_LOGPROBS + 1}),
    ("stop", {"stop": ("a",) * (MAX_STOP_STRINGS + 1)}),
    ("stop", {"stop": ("a", "")}),
    ("stop", {"stop": ("x" * (MAX_STOP_BYTES + 1),)}),
    ("stop", {"stop": ("é" * (MAX_STOP_BYTES // 2) + "x",)}),  # bytes, not characters
    ("stop_token_ids", {"stop_token_ids": (VOCAB_SIZE,)}),
    ("stop_token_ids", {"stop_token_ids": (-1,)}),
    ("stop_token_ids", {"stop_token_ids": (1,) * (MAX_STOP_TOKEN_IDS + 1)}),
    ("temperature", {"temperature": 0.0, "top_k": 2}),
    ("temperature", {"temperature": 0.0, "top_p": 0.9}),
    ("temperature", {"temperature": 0.0, "min_p": 0.1}),
]


@pytest.mark.parametrize("changes", GOOD, ids=repr)
def test_a_bound_itself_is_allowed(changes: dict[str, Any]) -> None:
    replace(WARM, **changes).validate(VOCAB_SIZE)


@pytest.mark.parametrize(("field", "changes"), BAD, ids=repr)
def test_beyond_a_bound_is_refused_by_name(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        replace(WARM, **changes).validate(VOCAB_SIZE)
    assert caught.value.field == f"sampling.{field}"
    assert caught.value.limit
    assert caught.value.field in caught.value.message


def test_the_defaults_are_greedy_and_neutral() -> None:
    Sampling().validate(VOCAB_SIZE)
    assert Sampling().greedy
    assert not Sampling().penalised


@pytest.mark.parametrize(
    "changes", [{"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}]
)
def test_any_penalty_counts(changes: dict[str, Any]) -> None:
    assert replace(WARM, **changes).penalised
