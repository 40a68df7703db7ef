"""Machines as their tools print them: what is found in each, and what is chosen."""

import tomllib
from pathlib import Path

import pytest

from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.probe import recorded
from headrace.executor.hardware.report import choose

MACHINES = sorted(path.parent for path in (Path(__file__).parent / "machines").glob("*/expected.toml"))


@pytest.mark.parametrize("folder", MACHINES, ids=lambda path: path.name)
def test_a_machine_is_known_and_its_shape_chosen(folder: Path) -> None:
    expected = tomllib.loads((folder / "expected.toml").read_text(encoding="utf-8"))
    machine = detect(recorded(folder))
    chosen = choose(machine.best)
    assert machine.faults == ()
    assert chosen.found == "its row of the table"
    got = {
        "device": machine.best.architecture,
        "rows": chosen.rows.value,
        "slots": chosen.slots.value,
        "align_tokens": chosen.align_tokens.value,
        "precision": chosen.precision.value,
        "step_tokens": chosen.step_tokens.value,
        "num_devices": len(machine.devices),
        "num_threads": machine.cpu.num_threads,
        "num_cores": machine.cpu.num_cores,
        "memory_gib": round(machine.best.memory_bytes / 2**30),
        "features": sorted(machine.best.features),
    }
    assert expected.items() <= got.items()


@pytest.mark.parametrize(
    ("machine", "rows", "align_tokens", "precision"),
    [
        ("a100-40", (8, 16), 64, "fp16"),
        ("a100-80", (8, 16), 64, "fp16"),
        ("v100", (4, 8), 32, "fp16"),
        ("v100-32", (4, 8), 32, "fp16"),
        ("t4", (2, 4), 32, "int8"),
    ],
)
def test_the_published_table_holds(machine: str, rows: tuple[int, int], align_tokens: int, precision: str) -> None:
    chosen = choose(detect(recorded(Path(__file__).parent / "machines" / machine)).best)
    assert chosen.shape.rows == rows
    assert rows[0] <= int(chosen.rows.value) <= rows[1]
    assert (chosen.align_tokens.value, chosen.precision.value) == (align_tokens, precision)
    assert "published table" in chosen.shape.source
