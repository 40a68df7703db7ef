"""Real engines by TensorRT for RTX, for architectures that are not here: built, kept, refused."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from headrace.core.errors import EngineFault, InvalidRequest
from headrace.executor.tensorrt.builder import run_build
from headrace.executor.tensorrt.engines import Wanted, build_engines
from headrace.executor.tensorrt.flavour import FLAVOURS
from headrace.executor.tensorrt.job import BuildJob, BuildOptions
from headrace.executor.tensorrt.ladder import Ladder
from headrace.executor.tensorrt.store import EngineStore, StoredEngine

RTX = FLAVOURS["tensorrt_rtx"]
pytestmark = pytest.mark.skipif(not RTX.installed, reason="tensorrt-rtx has wheels for x86-64 Linux only")


def wanted(model: Path, architectures: str, precisions: str, lengths: tuple[int, ...] = (32, 128)) -> Wanted:
    return Wanted(model, RTX, architectures.split(), precisions.split(), Ladder(8, lengths), {})


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "engines")


def build(store: EngineStore, wanted: Wanted) -> list[StoredEngine]:
    return build_engines(store, wanted, lambda engine: None)


@pytest.mark.parametrize(
    ("architectures", "precisions"),
    [("sm_75", "fp16 int8"), ("sm_80", "fp16 bf16 int8"), ("sm_86 sm_89 sm_120", "fp16 int8")],
)
def test_a_decoder_block_in_every_precision_of_its_architecture(
    store: EngineStore, decoder_block: Path, architectures: str, precisions: str
) -> None:
    job = wanted(decoder_block, architectures, precisions)
    built = build(store, job)
    assert len(built) == len(architectures.split()) * len(precisions.split())
    assert all(each.built and each.size_bytes == each.path.stat().st_size > 0 for each in built)
    assert all(len(each.key["profiles"]) == 2 for each in built)
    assert [each.built for each in build(store, job)] == [False] * len(built)


def test_minilm_is_built_once_for_an_architecture_and_precision(store: EngineStore, minilm: Path) -> None:
    job = wanted(minilm, "sm_80", "fp32 int8", lengths=(128,))
    first, second = build(store, job), build(store, job)
    assert [each.built for each in (*first, *second)] == [True, True, False, False]
    assert [each.name for each in first] == [each.name for each in second]


def test_options_are_engines_of_their_own(store: EngineStore, decoder_block: Path) -> None:
    plain = wanted(decoder_block, "sm_80", "fp16", lengths=(16,))
    streaming = replace(plain, options=BuildOptions(weight_streaming=True))
    assert build(store, plain)[0].name != build(store, streaming)[0].name


def test_attention_in_fp32_has_no_kernel_and_that_is_said(store: EngineStore, decoder_block: Path) -> None:
    with pytest.raises(EngineFault, match=r"sm_80 in fp32: .*Attention operation was not supported") as caught:
        build(store, wanted(decoder_block, "sm_80", "fp32", lengths=(16,)))
    assert "\n" not in caught.value.message
    assert store.engines() == []


def test_an_unknown_operator_is_one_line(
    store: EngineStore, tmp_path: Path, small_model: Callable[..., ModelProto]
) -> None:
    path = tmp_path / "odd.onnx"
    onnx.save(small_model("Frobnicate", domain="com.example"), path)
    with pytest.raises(InvalidRequest, match="Frobnicate") as caught:
        build(store, wanted(path, "sm_80", "fp16"))
    assert "\n" not in caught.value.message
    assert store.engines() == []


def test_a_dynamic_axis_without_a_profile_is_one_line(
    store: EngineStore, tmp_path: Path, small_model: Callable[..., ModelProto]
) -> None:
    path = tmp_path / "axis.onnx"
    onnx.save(small_model(axes=("batch", "width")), path)
    with pytest.raises(InvalidRequest, match="axis 'width' is dynamic"):
        build(store, wanted(path, "sm_80", "fp16"))


def test_nothing_is_built_where_one_of_them_cannot_be(store: EngineStore, decoder_block: Path) -> None:
    with pytest.raises(InvalidRequest, match="no engines for sm_90"):
        build(store, wanted(decoder_block, "sm_80 sm_90", "fp16"))
    assert store.engines() == []


def test_what_the_table_forbids_the_builder_refuses_too(decoder_block: Path, tmp_path: Path) -> None:
    """So that the table of limits is the library's own."""
    shapes = ({"x": ((1, 1), (2, 8), (2, 8))},)
    job = BuildJob("tensorrt_rtx", "sm_75", "fp32", str(decoder_block), str(tmp_path / "engine"), shapes)
    with pytest.raises((EngineFault, InvalidRequest)):
        run_build(job)
    assert not (tmp_path / "engine").exists()


def test_a_builder_that_takes_too_long_is_given_up(decoder_block: Path, tmp_path: Path) -> None:
    job = BuildJob("tensorrt_rtx", "sm_80", "fp16", str(decoder_block), str(tmp_path / "engine"), ())
    with pytest.raises(EngineFault, match=r"the builder took over 0\.01 s for sm_80 in fp16"):
        run_build(job, timeout_s=0.01)


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "headrace.cli.main", "engines", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_the_commands_build_list_and_prune(tmp_path: Path, decoder_block: Path) -> None:
    home = ("--home", str(tmp_path))
    options = ("--arch", "sm_80", "--precision", "fp16", "--lengths", "8,64", "--rows", "4")
    for state in ("built", "there"):
        done = headrace("build", str(decoder_block), *home, *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert f", {state}, " in done.stdout
    assert "block.onnx" in headrace("list", *home).stdout
    assert "removed 1 engines" in headrace("prune", *home, "--most-bytes", "0").stdout
    assert "no engines in" in headrace("list", *home).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.onnx", "--arch", "sm_80"), "error: nowhere.onnx: no ONNX model (No such file or directory)"),
        (("x.onnx", "--arch", "sm_90"), "error: tensorrt_rtx has no engines for sm_90"),
        (("x.onnx", "--arch", "sm_80", "--precision", "fp64"), "error: tensorrt_rtx on sm_80 has no fp64"),
        (("x.onnx", "--arch", "sm_80", "--lengths", "8,x"), "error: 'x' is no number of tokens"),
        (("x.onnx", "--arch", "sm_80", "--axis", "past=many"), "error: 'past=many' is no NAME=ROLE"),
        (("x.onnx", "--arch", "sm_80", "--flavour", "trt"), "error: 'trt' is no flavour of TensorRT"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = headrace("build", *arguments, "--home", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
