"""Writes docs/configuration.md from the settings in chassis/config.py. `check` compares instead, exit code 1.

Nothing in that page is written by hand: what a setting means is its description in the code.
"""

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from headrace.chassis.config import Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration

Every service reads its own section of one TOML file (`--config FILE`), and the sections that all share. A variable goes
on top: `HEADRACE_GATEWAY__LISTEN=0.0.0.0:8470` sets `listen` of `[gateway]`, with two underscores for each dot. A value
that a setting does not take, and a name that is none, end the service at its start; all faults are named at once.

This page is written by `python tools/configuration.py` from `chassis/config.py`.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_section(name, model, table) for name, model, table in sections(Settings))


def sections(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel], bool]]:
    """Each section below a model by its dotted name, in the order of the code; whether it may stand several times."""
    for name, field in model.model_fields.items():
        inner, several = _inner(field.annotation)
        if inner:
            yield f"{above}{name}", inner, several
            yield from sections(inner, f"{above}{name}.")


def _section(name: str, model: type[BaseModel], several: bool) -> str:
    rows = list(_rows(model))
    brackets = f"[[{name}]]" if several else f"[{name}]"
    text = f"\n## {brackets}\n"
    own = model.__doc__ if model.__doc__ and "pydantic" not in model.__doc__.lower() else ""
    if own and own != model.__base__.__doc__:
        text += f"\n{' '.join(inspect.cleandoc(own).split())}\n"
    if not rows:
        return text
    return text + "\n| setting | takes | default | |\n| --- | --- | --- | --- |\n" + "".join(rows)


def _rows(model: type[BaseModel]) -> Iterator[str]:
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        if _inner(field.annotation)[0]:
            continue  # a section of its own
        takes = _takes(schema["properties"][name], schema.get("$defs", {}))
        cells = (f"`{name}`", takes, _default(field), field.description or "")
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"


def _takes(schema: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """In words: the kind of value, its bounds, its choices."""
    if "$ref" in schema:
        return _takes(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema or "allOf" in schema:
        kinds = [_takes(each, known) for each in schema.get("anyOf", schema.get("allOf", ()))]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "nothing"))
    if "enum" in schema:
        return ", ".join(f"`{each}`" if each != "" else "empty" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`" if schema["const"] != "" else "empty"
    if schema.get("type") == "array":
        items = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list of {_takes(items, known)}"
    words = {"integer": "integer", "number": "number", "boolean": "true, false", "string": "text", "null": "nothing"}
    text = words.get(str(schema.get("type")), "text")
    if schema.get("format") == "path":
        text = "path"
    if "pattern" in schema:
        choices = _choices(schema["pattern"])
        text = choices or f"text like `{schema['pattern']}`"
    bounds = [
        f"{sign} {_number(schema[key])}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    return " ".join((text, ", ".join(bounds))).strip()


def _choices(pattern: str) -> str:
    """The words of a pattern like ^(a|b)$; '' for any other."""
    inner = pattern.removeprefix("^(").removesuffix(")$")
    if f"^({inner})$" != pattern or not all(word.replace("_", "").isalnum() for word in inner.split("|") if word):
        return ""
    return ", ".join(f"`{word}`" if word else "empty" for word in inner.split("|"))


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "`~/.cache/headrace`" if field.default_factory else "must be set"
    value = field.default
    if value is None or value == "":
        return "none" if value is None else "empty"
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value)
    return f"`{json.dumps(value, default=str, ensure_ascii=False)}`"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) or not value.is_integer() else f"{int(value):,}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _inner(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model that a field holds, one or (in a tuple) several of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) in (Union, UnionType, tuple):
        for each in get_args(annotation):
            if found := _inner(each)[0]:
                return found, get_origin(annotation) is tuple
    return None, False


def main() -> int:
    if sys.argv[1:] == ["check"]:
        if PAGE.read_text(encoding="utf-8") == page():
            return 0
        print("docs/configuration.md is not what the code gives: python tools/configuration.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
