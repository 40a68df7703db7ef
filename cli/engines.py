"""`headrace engines`: build, list and prune TensorRT engine files. Needs no device for TensorRT for RTX."""

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.chassis.config import load_settings
from headrace.core.errors import ConfigError, InvalidRequest, Unavailable
from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.device import DeviceKind
from headrace.executor.hardware.probe import probe
from headrace.executor.hardware.shapes import find_shape
from headrace.executor.tensorrt.flavour import FLAVOURS, find_flavour
from headrace.executor.tensorrt.job import BuildOptions
from headrace.executor.tensorrt.ladder import Ladder, power_ladder

app = typer.Typer(no_args_is_help=True, help="Export decoders to ONNX; build, list and prune TensorRT engines.")

DEFAULT_CONTEXT_TOKENS = 512


def engines_home() -> Path:
    """<models.home>/engines as the environment says."""
    return load_settings().models.home / "engines"


Home = Annotated[Path, typer.Option(default_factory=engines_home, help="The folder that holds the engines.")]


@app.command()
def export(
    source: Annotated[str, typer.Argument(help="smollm2, or a GGUF file of a decoder.")],
    target: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Its weights go beside it.")],
    slots: Annotated[int, typer.Option(min=1, help="Tokens of each row's KV cache.")] = 512,
) -> None:
    """Write a decoder as one ONNX graph of opset 24, with a linear KV cache, for engines to be built of."""
    try:
        from headrace.models.fetch import fetch
        from headrace.models.gguf_file import GgufFile
        from headrace.models.onnx_decoder import export_onnx
        from headrace.models.source import parse
    except ImportError as error:
        raise ConfigError(f"engines: {error}; install headrace[models,executor-tensorrt-rtx]") from error
    with tempfile.TemporaryDirectory(prefix="headrace-export-") as work:
        file = GgufFile(fetch(parse(source), Path(work), lambda done: None))
        try:
            export_onnx(file, target, slots)
        except OSError as error:
            raise Unavailable(f"{target} cannot be written: {error.strerror or error}") from error
    print(f"{target}: {file.architecture}, {slots} slots a row")


@app.command()
def build(
    home: Home,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file.")],
    arch: Annotated[str, typer.Option(metavar="NAMES", help="sm_80,sm_86; default: this machine's device.")] = "",
    precision: Annotated[str, typer.Option(metavar="NAMES", help="fp32, tf32, fp16, bf16, int8.")] = "fp16",
    flavour: Annotated[str, typer.Option(help="tensorrt or tensorrt_rtx; default: what is installed.")] = "",
    rows: Annotated[int, typer.Option(min=0, help="Most rows; 0: what suits the first architecture.")] = 0,
    lengths: Annotated[str, typer.Option(metavar="NUMBERS", help="Greatest length of each bucket: 32,64,128.")] = "",
    axis: Annotated[list[str] | None, typer.Option(metavar="NAME=ROLE", help="rows, tokens, or a number.")] = None,
    version_compatible: Annotated[bool, typer.Option(help="Later versions run it.")] = False,
    hardware_compatible: Annotated[bool, typer.Option(help="Later architectures run it.")] = False,
    weight_streaming: Annotated[bool, typer.Option(help="Weights may stay on the host.")] = False,
    refit: Annotated[bool, typer.Option(help="Weights can be replaced.")] = False,
    most_bytes: Annotated[int, typer.Option(min=0, help="Of the store; the least lately used go. 0: any.")] = 0,
) -> None:
    """Build engines of a model, one for each architecture and precision; those that are there are kept."""
    try:
        from headrace.executor.tensorrt.engines import Wanted, build_engines
        from headrace.executor.tensorrt.store import EngineStore, StoredEngine
    except ImportError as error:
        raise ConfigError(f"engines: {error}; install headrace[executor-tensorrt-rtx]") from error
    installed = [name for name, each in FLAVOURS.items() if each.installed]
    chosen = find_flavour(flavour or next(iter(installed), "tensorrt_rtx"))
    here = next((each.architecture for each in detect(probe()).devices if each.kind is DeviceKind.CUDA), "")
    architectures = _names(arch) or ([here] if here else [])
    if not architectures:
        raise InvalidRequest("this machine has no NVIDIA device: say which --arch", field="arch")
    shape, _ = find_shape(architectures[0])
    most_rows = rows or shape.rows[1]
    ladder = (
        Ladder(most_rows, tuple(_number(each) for each in _names(lengths)))
        if lengths
        else power_ladder(most_rows, shape.align_tokens, DEFAULT_CONTEXT_TOKENS)
    )
    options = BuildOptions(version_compatible, hardware_compatible, weight_streaming, refit)
    axes = dict(_axis(each) for each in axis or ())
    wanted = Wanted(model, chosen, architectures, _names(precision), ladder, axes, options, here)
    begun = time.perf_counter()

    def report(each: StoredEngine) -> None:
        nonlocal begun
        took_s = time.perf_counter() - begun
        begun = time.perf_counter()
        print(f"{each.name}: {each.size_bytes / 1e6:.1f} MB, {'built' if each.built else 'there'}, {took_s:.2f} s")

    build_engines(EngineStore(home, most_bytes), wanted, report)


@app.command(name="list")
def list_engines(home: Home) -> None:
    """The stored engines, the latest used first."""
    from headrace.executor.tensorrt.store import EngineStore

    table = Table(box=None, header_style="bold")
    for name in ("model", "arch", "precision", "flavour", "buckets", "size", "used"):
        table.add_column(name, overflow="fold")
    found = EngineStore(home).engines()
    for each in found:
        key = each.key
        flavour = f"{key['flavour']} {key['flavour_version']}"
        size, used = f"{each.size_bytes / 1e6:.1f} MB", time.strftime("%m-%d %H:%M", time.localtime(each.used))
        buckets = str(len(key["profiles"]))
        table.add_row(each.model, key["architecture"], key["precision"], flavour, buckets, size, used)
    if found:
        Console(markup=False).print(table)
    else:
        print(f"no engines in {home}")


@app.command()
def prune(
    home: Home,
    most_bytes: Annotated[int, typer.Option("--most-bytes", min=0, help="What may stay, the latest used; 0: none.")],
) -> None:
    """Remove the engines that were used least lately."""
    from headrace.executor.tensorrt.store import EngineStore

    removed = EngineStore(home).prune(most_bytes)
    print(f"removed {len(removed)} engines, {sum(each.size_bytes for each in removed) / 1e6:.1f} MB")


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _number(text: str) -> int:
    if not text.isdigit():
        raise InvalidRequest(f"{text!r} is no number of tokens", field="lengths")
    return int(text)


def _axis(text: str) -> tuple[str, str]:
    name, equals, role = text.partition("=")
    if not (name and equals and (role in ("rows", "tokens") or (role.isdigit() and int(role)))):
        raise InvalidRequest(f"{text!r} is no NAME=ROLE", field="axis", limit="rows, tokens or a number")
    return name, role
