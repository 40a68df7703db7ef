"""The table, and which of what was said, measured and tabled counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.chassis.config import EncoderSettings, ExecutorSettings
from headrace.core.errors import ConfigError, Unavailable
from headrace.core.model import ModelInfo
from headrace.core.request import Precision
from headrace.executor.hardware.choice import (
    Needs,
    choose_precision,
    choose_rows,
    choose_slots,
    choose_step_tokens,
)
from headrace.executor.hardware.defaults import filled_decoder, filled_encoder
from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.device import Device, DeviceKind, Machine
from headrace.executor.hardware.probe import recorded
from headrace.executor.hardware.profile import Measured, profile_path, read_all, read_measured, write_measured
from headrace.executor.hardware.shapes import find_shape, table
from headrace.models.repository import ModelEntry

MACHINES = Path(__file__).parent / "machines"
MEASURED = Measured(48, 512, "digest", 1100.0, 1000.0, "2026-12-03")
ENTRY = ModelEntry(ModelInfo("m", "decoder", "digest", 100, 10, ()), Path(), "", "", "", Precision.INT8)


def machine() -> Machine:
    return detect(recorded(MACHINES / "zen-4"))


def test_every_row_of_the_table_is_whole() -> None:
    assert len(table()) >= 20
    for row in table().values():
        assert 1 <= row.rows[0] <= row.rows[1]
        assert row.align_tokens % 8 == 0
        assert row.precision in row.precisions
        assert row.source
        assert row.source_tokens
        assert bool(row.slots) != bool(row.memory_gib)
        assert row.step_tokens >= 2 * (row.slots or row.rows[1])


@pytest.mark.parametrize(
    ("architecture", "row"),
    [
        ("sm_88", "sm_87"),
        ("sm_121", "sm_120"),
        ("sm_61", "sm_75"),
        ("gfx941", "gfx90a"),
        ("gaudi", "gaudi2"),
        ("neuroncore-v4", "neuroncore-v3"),
        ("x86-64", "x86-64-avx2"),
        ("arm64", "arm64-dotprod"),
        ("unknown", "x86-64-avx2"),
    ],
)
def test_an_unknown_architecture_gets_a_row_near_it_and_says_so(architecture: str, row: str) -> None:
    shape, found = find_shape(architecture)
    assert shape.architecture == row
    assert f"no row for {architecture}" in found


def test_rows_are_no_more_than_fit() -> None:
    device = Device(DeviceKind.CUDA, 0, "A100", "sm_80", 40 * 2**30)
    shape, _ = find_shape("sm_80")
    assert choose_rows(shape, device).value == 8
    assert choose_rows(shape, device, Needs(30 * 2**30, 2 * 2**30)).value == 3
    assert choose_rows(shape, device, Needs(50 * 2**30, 2**30)).value == 0
    assert choose_rows(shape, replace(device, memory_bytes=0)).value == 16


@pytest.mark.parametrize(
    ("available", "chosen"), [((), "fp16"), (("fp32", "bf16"), "bf16"), (("int8",), "int8"), (("fp8",), "")]
)
def test_a_precision_that_the_device_has(available: tuple[str, ...], chosen: str) -> None:
    assert choose_precision(find_shape("sm_80")[0], available).value == chosen


def test_said_goes_before_measured_before_the_table() -> None:
    shape, _ = find_shape("x86-64-avx512-bf16")
    rows = choose_rows(shape, machine().cpu.device)
    assert choose_slots(7, MEASURED, shape, rows, 0).value == 7
    assert choose_slots(0, MEASURED, shape, rows, 0).value == 48
    assert choose_slots(0, None, shape, rows, 0).value == 64
    assert choose_step_tokens(99, MEASURED, shape, 8).value == 99
    assert choose_step_tokens(0, MEASURED, shape, 8).value == 512
    assert choose_step_tokens(0, None, shape, 8).value == 640


def test_slots_and_step_tokens_leave_each_other_room() -> None:
    shape, _ = find_shape("x86-64-avx512-bf16")
    rows = choose_rows(shape, machine().cpu.device)
    assert choose_slots(0, None, shape, rows, 32).value == 30
    assert choose_step_tokens(0, None, shape, 1000).value == 2000


def test_an_executor_is_given_what_its_settings_leave_open(tmp_path: Path) -> None:
    own = filled_decoder(ExecutorSettings(), ENTRY, tmp_path, machine())
    assert (own.num_slots, own.step_tokens) == (64, 640)
    assert filled_encoder(EncoderSettings(), machine()).batch_rows == 16
    assert filled_encoder(EncoderSettings(batch_rows=3), machine()).batch_rows == 3
    write_measured(profile_path(tmp_path, machine().cpu.architecture(4)), "m", "int8", MEASURED)
    own = filled_decoder(ExecutorSettings(), ENTRY, tmp_path, machine())
    assert (own.num_slots, own.step_tokens) == (48, 512)
    own = filled_decoder(ExecutorSettings(num_slots=5), ENTRY, tmp_path, machine())
    assert (own.num_slots, own.step_tokens) == (5, 512)
    own = filled_decoder(ExecutorSettings(threads=2), ENTRY, tmp_path, machine())
    assert (own.num_slots, own.step_tokens) == (64, 640)  # other threads are another machine


def test_a_profile_holds_for_its_model_and_precision_only(tmp_path: Path) -> None:
    path = profile_path(tmp_path, "AMD EPYC (family 25 model 17), x86-64-avx512-bf16, 2 threads")
    assert path.name == "amd-epyc-family-25-model-17-x86-64-avx512-bf16-2-threads.toml"
    write_measured(path, "a.b", "int8", MEASURED)
    write_measured(path, "other", "fp32", replace(MEASURED, num_slots=3))
    assert read_measured(path, "a.b", "int8", "digest") == MEASURED
    assert read_measured(path, "a.b", "int8", "another digest") is None
    assert read_measured(path, "a.b", "fp32", "digest") is None
    assert set(read_all(path)) == {"a.b, int8", "other, fp32"}
    write_measured(path, "a.b", "int8", None)
    assert set(read_all(path)) == {"other, fp32"}


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "m = 1",
        "[m.int8]\nnum_slots = 1",
        '[m.int8]\nnum_slots = 0\nstep_tokens = 1\ndigest = "d"\ntokens_per_s = 1\ndefault_tokens_per_s = 1\n'
        'measured_on = ""',
    ],
)
def test_a_damaged_profile_is_named(tmp_path: Path, text: str) -> None:
    path = profile_path(tmp_path, machine().cpu.architecture(4))
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\.toml: .*; remove it, or run headrace tune again"):
        filled_decoder(ExecutorSettings(), ENTRY, tmp_path, machine())


def test_a_profile_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "hardware").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises((Unavailable, ConfigError), match="hardware"):
        write_measured(profile_path(tmp_path, "x"), "m", "int8", MEASURED)
