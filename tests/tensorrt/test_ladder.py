"""Profiles from buckets, targets and their limits, and where an engine may run."""

import pytest

from headrace.core.errors import ConfigError, InvalidRequest
from headrace.executor.tensorrt.flavour import FLAVOURS, Flavour, check_target, find_flavour
from headrace.executor.tensorrt.job import BuildJob, BuildOptions
from headrace.executor.tensorrt.ladder import Ladder, power_ladder, profiles
from headrace.executor.tensorrt.store import EngineKey, may_run

RTX, FULL = FLAVOURS["tensorrt_rtx"], FLAVOURS["tensorrt"]
IDS = ("ids", ("batch", "sequence"))


def test_a_bucket_has_a_profile_whose_usual_shape_is_its_greatest() -> None:
    found = profiles([IDS, ("cache", ("batch", 3, "slots", 64))], Ladder(16, (32, 64)), {"slots": "512"})
    assert found == [
        {"ids": ((1, 1), (16, 32), (16, 32)), "cache": ((1, 3, 512, 64), (16, 3, 512, 64), (16, 3, 512, 64))},
        {"ids": ((1, 33), (16, 64), (16, 64)), "cache": ((1, 3, 512, 64), (16, 3, 512, 64), (16, 3, 512, 64))},
    ]


def test_lengths_double_from_the_alignment_to_the_context() -> None:
    assert power_ladder(8, 64, 512).lengths == (64, 128, 256, 512)
    assert power_ladder(8, 32, 300).lengths == (32, 64, 128, 256, 300)
    assert power_ladder(8, 64, 10).lengths == (10,)


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        (("batch", "past"), {}, "axis 'past' is dynamic and no profile says its range"),
        (("batch", ""), {}, "an axis without a name is dynamic"),
        (("batch", "past"), {"past": "0"}, "axis 'past'"),
    ],
)
def test_a_dynamic_axis_without_a_profile_is_refused(
    shape: tuple[str, ...], axes: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        profiles([("x", shape)], Ladder(1, (8,)), axes)


@pytest.mark.parametrize(
    ("rows", "lengths"), [(0, (8,)), (1, ()), (1, (0, 8)), (1, (8, 8)), (1, (16, 8)), (1, tuple(range(1, 20)))]
)
def test_no_ladder(rows: int, lengths: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Ladder(rows, lengths)
    assert caught.value.field == "lengths"


@pytest.mark.parametrize(
    ("flavour", "architecture", "precision", "here", "message"),
    [
        (RTX, "sm_90", "fp16", "", "tensorrt_rtx has no engines for sm_90: it builds for sm_75, sm_80"),
        (RTX, "sm_70", "fp16", "sm_70", "no engines for sm_70"),
        (RTX, "nonsense", "fp16", "", "no engines for nonsense"),
        (RTX, "sm_75", "fp32", "", "on sm_75 has no fp32: it has fp16, int8"),
        (RTX, "sm_75", "bf16", "", "on sm_75 has no bf16"),
        (RTX, "sm_75", "tf32", "", "on sm_75 has no tf32"),
        (RTX, "sm_86", "fp8", "", "on sm_86 has no fp8"),
        (FULL, "sm_80", "fp16", "", "builds only for a device that is there, and none is"),
        (FULL, "sm_80", "fp16", "sm_90", "it builds for sm_90"),
    ],
)
def test_what_an_architecture_cannot_do_is_refused(
    flavour: Flavour, architecture: str, precision: str, here: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_target(flavour, architecture, precision, here)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "int8"])
def test_what_an_architecture_can_do_passes(precision: str) -> None:
    check_target(RTX, "sm_80", precision)
    check_target(FULL, "sm_90", precision, here="sm_90")


def test_a_flavour_that_is_not_there_is_told_with_what_to_install() -> None:
    with pytest.raises(InvalidRequest, match="'trt' is no flavour"):
        find_flavour("trt")
    missing = Flavour("tensorrt_of_nowhere", "pip install it")
    assert not missing.installed
    for ask in (missing.load, lambda: missing.version):
        with pytest.raises(ConfigError, match=r"tensorrt_of_nowhere.*pip install it"):
            ask()


def key(architecture: str = "sm_80", version: str = "10.8.0", **options: bool) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(EngineKey("digest", "tensorrt", version, architecture, "fp16", (), BuildOptions(**options)))


@pytest.mark.parametrize(
    ("made", "architecture", "version", "refused"),
    [
        (key(), "sm_80", "10.8.0", ""),
        (key(), "sm_86", "10.8.0", "it is for sm_80, not for sm_86"),
        (key(), "sm_80", "10.9.0", "it is of version 10.8.0, not 10.9.0"),
        (key(hardware_compatible=True), "sm_86", "10.8.0", ""),
        (key(hardware_compatible=True), "sm_75", "10.8.0", "it is for sm_80, not for sm_75"),
        (key("sm_75", hardware_compatible=True), "sm_80", "10.8.0", "it is for sm_75, not for sm_80"),
        (key(version_compatible=True), "sm_80", "10.9.0", ""),
        (key(version_compatible=True), "sm_80", "10.7.0", "it is of version 10.8.0, not 10.7.0"),
        (key(version_compatible=True), "sm_80", "11.0.0", "it is of version 10.8.0, not 11.0.0"),
    ],
)
def test_an_engine_of_another_version_or_architecture_is_not_for_here(
    made: dict[str, object], architecture: str, version: str, refused: str
) -> None:
    assert may_run(made, architecture, "tensorrt", version) == refused


def test_an_engine_of_another_flavour_is_not_for_here() -> None:
    assert may_run(key(), "sm_80", "tensorrt_rtx", "10.8.0") == "it is of tensorrt, not of tensorrt_rtx"


def test_a_job_survives_its_way_to_the_builder() -> None:
    found = tuple(profiles([IDS], Ladder(2, (8, 16))))
    job = BuildJob("tensorrt", "sm_80", "fp16", "/a", "/b", found, BuildOptions(refit=True), "/c")
    assert BuildJob.from_json(job.to_json()) == job
