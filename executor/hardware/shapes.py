"""The shape table: what suits an architecture before anything has been measured. The rows are data, in shapes.toml."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of the table; shapes.toml says what each column means. `memory_gib` of a processor is none."""

    architecture: str
    devices: str
    rows: tuple[int, int]
    align_tokens: int
    step_tokens: int
    precision: str
    precisions: tuple[str, ...]
    compute: str
    source: str
    source_tokens: str
    memory_gib: tuple[int, int] | None = None
    slots: int = 0
    note: str = ""

    @property
    def is_start(self) -> bool:
        """Whether nobody has measured or published it."""
        return self.source.startswith("start")


@cache
def table() -> dict[str, Shape]:
    """The rows by architecture, in their order."""
    data = tomllib.loads(files("headrace.executor.hardware").joinpath("shapes.toml").read_text(encoding="utf-8"))
    rows = [_row(each) for each in data["shape"]]
    return {row.architecture: row for row in rows}


def _row(each: dict[str, object]) -> Shape:
    lists = {name: tuple(value) for name, value in each.items() if isinstance(value, list)}
    return Shape(**{**each, **lists})  # type: ignore[arg-type]


def find_shape(architecture: str) -> tuple[Shape, str]:
    """The architecture's row, or that of the nearest older one that it can run code of, and how it was found.

    An unknown architecture gets the row of its kind that asks for least.
    """
    rows = table()
    if architecture in rows:
        return rows[architecture], "its row of the table"
    family, number = _family(architecture)
    related = [row for row in rows.values() if _family(row.architecture)[0] == family]
    older = [row for row in related if number and _family(row.architecture)[1] <= number]
    if older:
        nearest = max(older, key=lambda row: _family(row.architecture)[1])
        return nearest, f"no row for {architecture}: that of {nearest.architecture}, the nearest before it"
    # of equals the last, which wants the fewest instructions
    least = min([*(related or rows.values())][::-1], key=lambda row: (row.rows[1], row.step_tokens))
    return least, f"no row for {architecture}: that of {least.architecture}, which asks for least"


def _family(architecture: str) -> tuple[str, int]:
    """Of sm_89 (sm, 89), of gfx942 (gfx, 0x942), of x86-64-amx (x86, 0): processors have no order in their names."""
    for prefix, base in (("sm_", 10), ("gfx", 16), ("gaudi", 10), ("neuroncore-v", 10)):
        if architecture.startswith(prefix):
            rest = architecture.removeprefix(prefix)
            try:
                return prefix, int(rest or "1", base)
            except ValueError:
                return prefix, 0
    return ("arm" if architecture.startswith("arm") else "x86"), 0
