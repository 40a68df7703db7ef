"""Constraints as grammars of llguidance, and the matchers that it makes of them.

Its compiler and its matchers count what they do and give up at bounds, so that whatever a caller sends ends soon: a
grammar within MAX_CONSTRAINT_BYTES takes a few tenths of a second at most, a mask some milliseconds.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from headrace.core.constraint import Constraint, ConstraintKind
from headrace.core.errors import InvalidRequest

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_SYMBOLS = 100_000
MAX_STEP_ITEMS = 10_000
"""Of an ambiguous grammar's parse, at one token: half a millisecond's worth."""
MAX_LEXER_STATES = 25_000
"""One or two kilobytes each, of every matcher that is kept."""
_SHOWN = 300
"""Characters of the library's word that an error repeats."""

_JSON: "JsonCompileOptions" = {
    # as json.dumps writes it: models know this form, and none can go on with white space for ever
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,  # a keyword that cannot be kept is refused
}


def grammar_of(constraint: Constraint) -> str:
    """The constraint as llguidance writes it. Raises InvalidRequest where it cannot be read as what it says to be."""
    text = constraint.text
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=_JSON)
        case ConstraintKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(_schema(constraint), overrides=_JSON)
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(text)
        case ConstraintKind.CHOICE:
            return LLMatcher.grammar_from_regex("|".join(map(_literal, constraint.texts)))
        case ConstraintKind.GRAMMAR:
            try:
                return grammar_from("grammar", text)  # Lark, or turned into it
            except ValueError as error:
                raise wrong(constraint, str(error)) from None


def check(constraint: Constraint) -> None:
    """Compiles it, without a model. Takes up to some tenths of a second. Raises InvalidRequest that names its field."""
    constraint.validate()
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar_of(constraint), limits=limits())
    if is_error:
        raise wrong(constraint, messages[0] if messages else "it cannot be compiled")


def tokens_of(tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The vocabulary as masks need it, from a tokenizer.json: most of a second and some tens of megabytes."""
    return LLTokenizer(str(tokenizer), n_vocab=vocab_size, eos_token=list(eos_token_ids))


def matcher_of(tokens: LLTokenizer, constraint: Constraint) -> LLMatcher:
    """At the beginning of an answer. Raises InvalidRequest."""
    matcher = LLMatcher(tokens, grammar_of(constraint), log_level=0, limits=limits())
    if matcher.is_error():
        raise wrong(constraint, matcher.get_error())
    return matcher


def wrong(constraint: Constraint, why: str) -> InvalidRequest:
    """What it is refused with."""
    lines = " ".join(why.split())[:_SHOWN]
    return InvalidRequest(
        f"{constraint.field} cannot be kept: {lines}", field=constraint.field, limit="see docs/structured.md"
    )


@cache
def limits() -> LLParserLimits:
    """What a grammar and its masks may take."""
    return LLParserLimits(
        max_grammar_size=MAX_GRAMMAR_SYMBOLS,
        step_max_items=MAX_STEP_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )


def _literal(text: str) -> str:
    """A regular expression for just this text."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def _schema(constraint: Constraint) -> dict[str, Any]:
    try:
        schema = json.loads(constraint.text)
    except (ValueError, RecursionError) as error:
        raise wrong(constraint, f"it is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise wrong(constraint, "it is no JSON object")
    return schema
