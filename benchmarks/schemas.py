"""Schemas for constrained answers, each with questions that fit it, and whether an answer is what was asked for."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_NAME = {"type": "string", "pattern": "^[A-Z][a-z]{1,10}( [A-Z][a-z]{1,10})?$"}
_WORD = {"type": "string", "pattern": "^[a-z]{2,12}$"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": _NAME,
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "languages": {"type": "array", "items": {"enum": ["en", "fr", "de", "es"]}, "minItems": 1, "maxItems": 3},
            "married": {"type": "boolean"},
        },
        "required": ["name", "age", "languages", "married"],
        "additionalProperties": False,
    },
    "order": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
            "lines": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {"item": _WORD, "count": {"type": "integer", "minimum": 1, "maximum": 99}},
                    "required": ["item", "count"],
                    "additionalProperties": False,
                },
            },
            "paid": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        },
        "required": ["id", "lines", "paid"],
        "additionalProperties": False,
    },
    "weather": {
        "type": "object",
        "properties": {
            "city": _NAME,
            "date": {"type": "string", "format": "date"},
            "celsius": {"type": "integer", "minimum": -60, "maximum": 60},
            "sky": {"enum": ["clear", "cloudy", "rain", "snow"]},
        },
        "required": ["city", "date", "sky"],
        "additionalProperties": False,
    },
    "review": {
        "type": "object",
        "properties": {
            "stars": {"enum": [1, 2, 3, 4, 5]},
            "summary": {"type": "string", "minLength": 5, "maxLength": 60},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 4},
        },
        "required": ["stars", "summary"],
        "additionalProperties": False,
        "$defs": {"tag": _WORD},
    },
    "pair": {
        "type": "array",
        "prefixItems": [_WORD, {"type": "integer", "minimum": 0, "maximum": 9999}],
        "items": False,
        "minItems": 2,
    },
}
_QUESTIONS = {
    "person": "Describe a person who lives in {place} as JSON.",
    "order": "Write an order of a shop in {place} as JSON.",
    "weather": "What is the weather in {place}? Answer as JSON.",
    "review": "Review a restaurant in {place} as JSON.",
    "pair": "A word about {place} and a number, as a JSON array.",
}
_PLACES = ("Paris", "a small town", "Lisbon", "the mountains", "Nairobi", "a harbour", "Kyoto", "a village by the sea")

MAX_TOKENS = 160
"""An answer to any of them has fewer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its schema's name."""

    schema: str
    prompt: str

    @property
    def text(self) -> str:
        """The schema as JSON."""
        return json.dumps(SCHEMAS[self.schema])


def questions(seed: int) -> Iterator[Asked]:
    """Of each schema in turn, endlessly."""
    drawn = random.Random(seed)
    while True:
        for name in SCHEMAS:
            yield Asked(name, _QUESTIONS[name].format(place=drawn.choice(_PLACES)))
