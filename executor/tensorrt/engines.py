"""From an ONNX file to stored engines: checks what is asked, prepares the graph once a precision, builds what is not
there."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from headrace.executor.tensorrt.builder import run_build
from headrace.executor.tensorrt.flavour import Flavour, check_target
from headrace.executor.tensorrt.graph import graph_inputs, prepared, read_graph
from headrace.executor.tensorrt.job import PLAIN, BuildJob, BuildOptions
from headrace.executor.tensorrt.ladder import Ladder, profiles
from headrace.executor.tensorrt.store import EngineKey, EngineStore, StoredEngine, model_digest

_MOST_PROTOBUF_BYTES = 2**31 - 2**20


@dataclass(frozen=True, slots=True)
class Wanted:
    """Engines of one model: every precision for every architecture. `here` is the architecture of this machine's
    device, for a flavour that builds on it."""

    model: Path
    flavour: Flavour
    architectures: Sequence[str]
    precisions: Sequence[str]
    ladder: Ladder
    axes: Mapping[str, str]
    options: BuildOptions = PLAIN
    here: str = ""


def build_engines(store: EngineStore, wanted: Wanted, report: Callable[[StoredEngine], None]) -> list[StoredEngine]:
    """In the order of `wanted`; `report` after each. Blocks.

    Raises InvalidRequest before anything is built where one of them cannot be, else as EngineStore.get_or_build.
    """
    version = wanted.flavour.version
    for architecture in wanted.architectures:
        for precision in wanted.precisions:
            check_target(wanted.flavour, architecture, precision, wanted.here)
    model = read_graph(wanted.model)
    inputs = [(each.name, each.shape) for each in graph_inputs(model)]
    shapes = tuple(profiles(inputs, wanted.ladder, wanted.axes))
    digest = model_digest(wanted.model, _external_files(wanted.model))
    found = []
    with tempfile.TemporaryDirectory(prefix="headrace-engine-") as work:
        for precision in wanted.precisions:
            graph = Path(work) / f"{precision}.onnx"
            for architecture in wanted.architectures:
                flavour = wanted.flavour.name
                key = EngineKey(digest, flavour, version, architecture, precision, shapes, wanted.options)
                cache = store.root / f"timing-{flavour}-{version}-{architecture}.cache"

                def build(
                    output: Path,
                    precision: str = precision,
                    key: EngineKey = key,
                    cache: Path = cache,
                    graph: Path = graph,
                ) -> None:
                    if not graph.is_file():
                        _write(prepared(model, precision), graph)
                    job = BuildJob(
                        key.flavour,
                        key.architecture,
                        precision,
                        str(graph),
                        str(output),
                        shapes,
                        wanted.options,
                        str(cache),
                    )
                    run_build(job)

                found.append(store.get_or_build(key, wanted.model.name, build))
                report(found[-1])
    return found


def _write(model: onnx.ModelProto, path: Path) -> None:
    """Weights beside it where one file could not hold them."""
    large = model.ByteSize() > _MOST_PROTOBUF_BYTES
    onnx.save(model, path, save_as_external_data=large, location=f"{path.name}.weights" if large else None)


def _external_files(path: Path) -> list[Path]:
    """Files beside the model that hold its weights."""
    bare = onnx.load(path, load_external_data=False)
    names = {
        entry.value
        for tensor in bare.graph.initializer
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [path.parent / name for name in names]
