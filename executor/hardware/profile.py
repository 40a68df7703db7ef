"""What `headrace tune` has measured on this machine, as a file that executors read.

One TOML file a machine, <home>/hardware/ARCHITECTURE.toml, with a table [MODEL.PRECISION] for each that was measured.
"""

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, Unavailable

MOST_SLOTS = 4096
MOST_STEP_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found best for a model in a precision. `tokens_per_s` with it, `default_tokens_per_s` with the table's,
    in alternating runs of one process; `digest` is the model's."""

    num_slots: int
    step_tokens: int
    digest: str
    tokens_per_s: float
    default_tokens_per_s: float
    measured_on: str

    @property
    def why(self) -> str:
        gain = self.tokens_per_s / self.default_tokens_per_s - 1 if self.default_tokens_per_s else 0.0
        return f"measured by headrace tune on {self.measured_on}: {gain:+.1%} to the table"


def profile_path(home: Path, architecture: str) -> Path:
    return home / "hardware" / f"{re.sub(r'[^A-Za-z0-9]+', '-', architecture).strip('-').lower()}.toml"


def read_measured(path: Path, model: str, precision: str, digest: str) -> Measured | None:
    """None where it was not measured, or the model has changed since. Raises ConfigError where the file is damaged."""
    try:
        known = precision in _load(path).get(model, {})
    except TypeError as error:
        raise _damaged(path, "a model is no table") from error
    measured = _one(path, model, precision) if known else None
    return measured if measured is not None and measured.digest == digest else None


def read_all(path: Path) -> dict[str, Measured]:
    """All that was measured, by `MODEL, PRECISION`. Raises ConfigError where the file is damaged."""
    try:
        names = [(model, precision) for model, tables in _load(path).items() for precision in tables]
    except TypeError as error:
        raise _damaged(path, "a model is no table") from error
    return {f"{model}, {precision}": _one(path, model, precision) for model, precision in names}


def write_measured(path: Path, model: str, precision: str, measured: Measured | None) -> None:
    """Puts it in, or takes it out where None, and leaves the others. A reader sees the old file or the new.

    Raises Unavailable where it cannot be written.
    """
    tables = _load(path)
    precisions = dict(tables.get(model, {}))
    precisions.pop(precision, None)
    if measured is not None:
        precisions[precision] = asdict(measured)
    tables[model] = precisions
    lines = [
        f"[{json.dumps(name)}.{json.dumps(each)}]\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, precisions in tables.items()
        for each, table in precisions.items()
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write("\n".join(lines))
        os.replace(file.name, path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error


def _one(path: Path, model: str, precision: str) -> Measured:
    try:
        measured = Measured(**_load(path)[model][precision])
    except TypeError as error:
        raise _damaged(path, f"{model}.{precision}: {error}") from error
    for name, most in (("num_slots", MOST_SLOTS), ("step_tokens", MOST_STEP_TOKENS)):
        value = getattr(measured, name)
        if type(value) is not int or not 1 <= value <= most:
            raise _damaged(path, f"{model}.{precision}.{name}: {value!r} is not within 1 to {most}")
    return measured


def _load(path: Path) -> dict[str, Any]:
    try:
        data: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    return dict(data)


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"{path}: {what}; remove it, or run headrace tune again")
