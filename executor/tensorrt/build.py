"""Builds one engine, in a process of its own: reads a BuildJob on standard input, writes the engine's file.

A builder that crashes or runs out of memory takes nobody with it. Prints one line of JSON: what was built, or the
error.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from headrace.core.errors import EngineFault, HeadraceError, InvalidRequest, Unavailable
from headrace.executor.tensorrt.flavour import Flavour, find_flavour
from headrace.executor.tensorrt.job import BuildJob, BuildOptions


def build(job: BuildJob) -> dict[str, int | float]:
    """Writes the engine and returns its figures.

    Raises InvalidRequest where the graph cannot be parsed or the precision is not there, EngineFault where the builder
    fails, Unavailable where the file cannot be written, ConfigError where the flavour is not installed.
    """
    flavour = find_flavour(job.flavour)
    library = flavour.load()
    logger = _logger(library)
    builder = library.Builder(logger)
    network = builder.create_network(1 << int(library.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = library.OnnxParser(network, logger)
    if not parser.parse_from_file(job.graph):
        raise InvalidRequest(f"{flavour.name} cannot parse the graph: {_parse_errors(parser)}", field="model")
    config = builder.create_builder_config()
    _target(library, flavour, config, job)
    for shapes in job.profiles:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        if config.add_optimization_profile(profile) < 0:
            raise InvalidRequest(f"{flavour.name} refuses the profile {shapes}", field="lengths")
    cache = _timing_cache(flavour, config, job)
    begun = time.perf_counter()
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineFault(f"{flavour.name} builds no engine for {job.architecture} in {job.precision}: {logger.last}")
    seconds = time.perf_counter() - begun
    try:
        Path(job.output).write_bytes(memoryview(plan))
        if cache is not None:
            Path(job.timing_cache).write_bytes(memoryview(config.get_timing_cache().serialize()))
    except OSError as error:
        raise Unavailable(f"{job.output} cannot be written: {error.strerror}") from error
    return {"bytes": plan.nbytes, "seconds": round(seconds, 2), "layers": network.num_layers}


def _logger(library: Any) -> Any:
    """Keeps the last error: the library says nothing when it raises or returns nothing."""

    class Logger(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.last = "no reason given"

        def log(self, severity: Any, message: str) -> None:
            if severity in (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR):
                self.last = " ".join(message.split())[:400]

    return Logger()


def _parse_errors(parser: Any) -> str:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    texts = [f"{each.node_operator() or 'graph'} {each.node_name()}: {each.desc()}" for each in errors]
    return " ".join((texts or ["no reason given"])[0].split())[:400]


def _target(library: Any, flavour: Flavour, config: Any, job: BuildJob) -> None:
    if flavour.ahead_of_time:
        config.num_compute_capabilities = 1
        name = job.architecture.replace("_", "").upper()
        config.set_compute_capability(getattr(library.ComputeCapability, name), 0)
    flag, options = library.BuilderFlag, job.options
    if job.precision == "tf32":
        config.set_flag(flag.TF32)
    else:
        config.clear_flag(flag.TF32)  # on by default, where fp32 is to be fp32
    for wanted, each in _flags(flag, options):
        if wanted:
            config.set_flag(each)
    if options.hardware_compatible:
        config.hardware_compatibility_level = library.HardwareCompatibilityLevel.AMPERE_PLUS


def _flags(flag: Any, options: BuildOptions) -> list[tuple[bool, Any]]:
    return [
        (options.version_compatible, flag.VERSION_COMPATIBLE),
        (options.weight_streaming, flag.WEIGHT_STREAMING),
        (options.refit, flag.REFIT),
    ]


def _timing_cache(flavour: Flavour, config: Any, job: BuildJob) -> Any:
    """How long each kernel took in builds before this one; one that is no use is begun anew."""
    if not (flavour.has_timing_cache and job.timing_cache):
        return None
    path = Path(job.timing_cache)
    known = path.read_bytes() if path.is_file() else b""
    cache = config.create_timing_cache(known) or config.create_timing_cache(b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def main() -> int:
    try:
        done: dict[str, Any] = dict(build(BuildJob.from_json(sys.stdin.read())))
    except HeadraceError as error:
        done = {"error": error.message, "reason": error.reason, "field": error.field, "limit": error.limit}
    print(json.dumps(done))
    return 1 if "error" in done else 0


if __name__ == "__main__":
    sys.exit(main())
