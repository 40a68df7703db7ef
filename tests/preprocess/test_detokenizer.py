"""The pieces of an answer, put together, are its text; and no piece holds half a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.models import reference
from headrace.preprocess import detokenizer
from headrace.preprocess.detokenizer import Detokenizer
from headrace.preprocess.text_models import TextModel, TextModels
from headrace.preprocess.tokenizer import Tokenizer

TEXT = "naïve café — 東京タワーへ行く 🌊🏞️ مرحبا 👩‍👩‍👧‍👦 e\u0301 \u200d\n\ttabs  and   spaces"


def pieces(tokenizer: Tokenizer, chunks: Sequence[Sequence[int]]) -> list[str]:
    stream = Detokenizer(tokenizer)
    return [*(stream.push(chunk) for chunk in chunks), stream.flush()]


def whole(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(tokenizer.visible(token_ids))


@pytest.fixture(scope="session")
def byte_model(texts: TextModels) -> TextModel:
    return texts.load(reference.NAME)


@given(token_ids=st.lists(st.integers(0, 600), max_size=80), width=st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_pieces_of_random_bytes_make_the_whole(byte_model: TextModel, token_ids: list[int], width: int) -> None:
    chunks = [token_ids[start : start + width] for start in range(0, len(token_ids), width)]
    expected = bytes(token for token in token_ids if token < 256).decode(errors="replace")
    assert "".join(pieces(byte_model.tokenizer, chunks)) == expected


@given(token_ids=st.lists(st.integers(0, 49_200), max_size=60), width=st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_pieces_of_random_tokens_make_the_whole(smollm2: TextModel, token_ids: list[int], width: int) -> None:
    chunks = [token_ids[start : start + width] for start in range(0, len(token_ids), width)]
    assert "".join(pieces(smollm2.tokenizer, chunks)) == whole(smollm2.tokenizer, token_ids)


@given(text=st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_no_piece_of_a_text_has_a_broken_character(smollm2: TextModel, text: str) -> None:
    token_ids = smollm2.tokenizer.encode(text, add_special_tokens=False).tolist()
    out = pieces(smollm2.tokenizer, [[token] for token in token_ids])
    expected = whole(smollm2.tokenizer, token_ids)
    assert "".join(out) == expected
    if detokenizer.UNFINISHED not in expected:  # this vocabulary has no token for some bytes
        assert not any(detokenizer.UNFINISHED in piece for piece in out)


def test_a_character_comes_with_its_last_byte(byte_model: TextModel) -> None:
    wave = "🌊".encode()
    assert pieces(byte_model.tokenizer, [[byte] for byte in wave]) == ["", "", "", "🌊", ""]


def test_words_of_many_scripts_stream_as_they_are(smollm2: TextModel) -> None:
    token_ids = smollm2.tokenizer.encode(TEXT, add_special_tokens=False).tolist()
    out = pieces(smollm2.tokenizer, [[token] for token in token_ids])
    assert "".join(out) == TEXT
    assert sum(bool(piece) for piece in out) > len(TEXT) // 4  # it did stream


def test_an_unfinished_character_is_replaced_at_the_end(byte_model: TextModel) -> None:
    assert pieces(byte_model.tokenizer, [list(b"ok\xe2\x82")]) == ["", "ok\ufffd"]


def test_special_and_unknown_tokens_are_no_text(byte_model: TextModel, smollm2: TextModel) -> None:
    assert pieces(byte_model.tokenizer, [[104, reference.EOS_TOKEN_ID, 105], [300, 100_000]]) == ["hi", "", ""]
    hello = smollm2.tokenizer.encode("<|im_start|>hello<|im_end|>", add_special_tokens=False).tolist()
    assert pieces(smollm2.tokenizer, [hello]) == ["hello", ""]


@pytest.mark.parametrize("noise", [b"\xe2", b"\x82", b"\xff\xe2\x82", b"\xf0\x9f\x8c", b"\xc3\xa9\xe2"])
def test_endless_noise_costs_the_same_for_each_token(byte_model: TextModel, noise: bytes) -> None:
    widths: list[int] = []

    class Counting(Tokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            widths.append(len(token_ids))
            return super().decode(token_ids)

    counting = Counting.__new__(Counting)
    counting.__dict__.update(byte_model.tokenizer.__dict__)
    token_ids = list(noise * (2_000 // len(noise)))
    assert "".join(pieces(counting, [[token] for token in token_ids])) == bytes(token_ids).decode(errors="replace")
    assert max(widths) <= 3 * detokenizer.MAX_HELD_TOKENS
    assert len(widths) <= 12 * len(token_ids)
