"""Stop strings: the streamed cut equals the cut of the whole text, however it is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.request import FinishReason, Sampling
from headrace.gateway.answer import Answer
from headrace.gateway.generation import Output
from headrace.gateway.stops import StopStrings

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)


def offline_cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character: the first at which a stop string is complete; the longest of those counts."""
    for end in range(1, len(text) + 1):
        complete = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(complete)], True
    return text, False


def split(text: str, sizes: list[int]) -> list[str]:
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    return [*parts, text[at:]]


@given(TEXT, STOPS, st.lists(st.integers(0, 5), max_size=10))
def test_streamed_cut_is_the_offline_cut(text, stops, sizes):
    filtered = StopStrings(stops)
    emitted = "".join(filtered.push(part) for part in split(text, sizes)) + filtered.flush()
    assert (emitted, filtered.hit) == offline_cut(text, stops)


@given(TEXT, STOPS, st.lists(st.integers(0, 5), max_size=10))
def test_holds_back_only_what_may_become_a_stop_string(text, stops, sizes):
    filtered, seen, emitted = StopStrings(stops), "", ""
    for part in split(text, sizes):
        seen += part
        emitted += filtered.push(part)
        held = seen[len(emitted) :]
        assert filtered.hit or not held or any(stop.startswith(held) and stop != held for stop in stops)


@given(st.binary(max_size=20), st.lists(st.integers(0, 5), max_size=10), st.integers(0, 4), st.booleans())
def test_an_answer_does_not_depend_on_grouping(data, sizes, min_tokens, stopping):
    sampling = Sampling(stop=("a", "\x01\x02") if stopping else (), min_tokens=min_tokens)

    def answer(groups: list[bytes]) -> tuple[str, bytes, int, FinishReason]:
        one, text, token_ids = Answer(Latin(), sampling, {0}), "", b""
        for position, group in enumerate(groups):
            finish = FinishReason.LENGTH if position == len(groups) - 1 else FinishReason.NONE
            piece = one.push(Output(0, b"".join(byte.to_bytes(4, "little") for byte in group), [], finish))
            text, token_ids = text + piece.text, token_ids + piece.token_ids
            if piece.finish:
                break
        return text, token_ids, one.num_tokens, one.finish

    groups = [part.encode("latin-1") for part in split(data.decode("latin-1"), sizes)]
    assert answer(groups) == answer([data])


class Latin:
    """A token is a character."""

    def push(self, token_ids) -> str:
        return bytes(token_ids).decode("latin-1")

    def flush(self) -> str:
        return ""


@pytest.mark.parametrize(("finish", "text"), [(FinishReason.STOP, "hi"), (FinishReason.LENGTH, "hi!")])
def test_only_the_token_that_ended_the_answer_is_silent(finish, text):
    answer = Answer(Latin(), Sampling(), {ord("!")})
    token_ids = b"".join(byte.to_bytes(4, "little") for byte in b"hi!")
    piece = answer.push(Output(0, token_ids, [], finish))
    assert (piece.text, piece.token_ids, answer.num_tokens) == (text, token_ids, 3)


def test_stop_strings_do_not_count_in_the_first_min_tokens():
    answer = Answer(Latin(), Sampling(stop=("x",), min_tokens=2), set())
    piece = answer.push(Output(0, b"".join(byte.to_bytes(4, "little") for byte in b"xxax"), [], FinishReason.NONE))
    assert (piece.text, piece.finish, answer.num_tokens) == ("xxa", FinishReason.STOP, 4)
