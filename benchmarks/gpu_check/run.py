"""All checks, one after the other within eight minutes; JSON on the standard output, a line a check on the other.

Exit code 0: all passed, 1: one failed, 2: there is no device.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from headrace.benchmarks.gpu_check import arena, copies, faithful, rooflines
from headrace.benchmarks.gpu_check.check import Check, Failed, Figures, Outcome, Scale, must
from headrace.core.errors import EngineNotReady
from headrace.executor.cuda.bindings import Bindings, load_bindings
from headrace.executor.cuda.device import CudaDevice

BUDGET_S = 420.0
"""No check is begun later: the longest take less than a minute."""


def misuse(device: CudaDevice, scale: Scale) -> Figures:
    """What a documented misuse gets from the device, the fake must give."""
    del device
    figures = faithful.compare(scale)
    must(not figures["unfaithful"], "the fake driver says something else for: " + ", ".join(figures["unfaithful"]))
    return figures


CHECKS: tuple[tuple[str, Check], ...] = (
    ("arena: mapping", arena.mapping),
    ("arena: fragmentation", arena.fragmentation),
    ("copies: bandwidth", copies.bandwidth),
    ("copies: overlap", copies.overlap),
    ("torch over the arena", rooflines.tensors_over_the_arena),
    ("torch: products against the roofline", rooflines.products),
    ("torch: a decoder's step against the roofline", rooflines.decoder_step),
    ("misuse as on the fake driver", misuse),
    ("arena: memory pressure", arena.pressure),  # the last: others have left what they cache
)


def run(
    device: CudaDevice,
    scale: Scale,
    checks: Iterable[tuple[str, Check]] = CHECKS,
    *,
    now: Callable[[], float] = time.monotonic,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """A check that breaks fails, and the others go on; what wants a package that is missing is told as not tried."""
    begun = now()
    outcomes = []
    for name, check in checks:
        start = now()
        if start - begun > BUDGET_S:
            outcome = Outcome(name, None, 0.0, said=f"not begun: {BUDGET_S:g} s had gone")
        else:
            outcome = _one(name, check, device, scale, now)
        outcomes.append(outcome)
        told(outcome)
    return outcomes


def _one(name: str, check: Check, device: CudaDevice, scale: Scale, now: Callable[[], float]) -> Outcome:
    start = now()
    try:
        figures = check(device, scale)
    except ImportError as error:
        return Outcome(name, None, now() - start, said=f"not tried: {error}")
    except Failed as failed:
        return Outcome(name, False, now() - start, said=failed.what)
    except Exception as error:  # whatever a driver that is checked for the first time may do
        return Outcome(name, False, now() - start, said=f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Outcome(name, True, now() - start, figures)


def report(device: CudaDevice, outcomes: list[Outcome]) -> dict[str, Any]:
    """As JSON has it."""
    free, total = device.memory_bytes()
    packages = {name: _version(name) for name in ("cuda-bindings", "torch", "transformers", "numpy")}
    return {
        "device": {"name": device.name, "memory_bytes": total, "free_bytes": free},
        "machine": {"python": platform.python_version(), "system": platform.platform(), **packages},
        "passed": all(each.passed is not False for each in outcomes),
        "checks": [
            {
                "name": each.name,
                "passed": each.passed,
                "seconds": round(each.seconds, 3),
                "figures": dict(each.figures),
                "said": each.said,
            }
            for each in outcomes
        ],
    }


def main(arguments: list[str] | None = None, load: Callable[[], Bindings] = load_bindings) -> int:
    parser = argparse.ArgumentParser(prog="gpu_check", description="Check what only a CUDA device can show.")
    parser.add_argument("--out", type=Path, help="write the JSON to this file, too")
    options = parser.parse_args(arguments)
    try:
        device = CudaDevice(load())
    except EngineNotReady as error:
        print(f"gpu_check: {error.message}", file=sys.stderr)
        return 2
    with device:
        outcomes = run(device, Scale(), told=_tell)
        try:
            whole = report(device, outcomes)
        except OSError as error:  # a check has broken the context; what was found still counts
            print(f"gpu_check: the device is gone: {error}", file=sys.stderr)
            whole = {"device": None, "passed": False, "checks": [each.name for each in outcomes if each.passed]}
    text = json.dumps(whole, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0 if whole["passed"] else 1


def _tell(outcome: Outcome) -> None:
    word = {True: "passed", False: "FAILED", None: "-"}[outcome.passed]
    print(f"{word:7} {outcome.seconds:6.1f} s  {outcome.name}  {outcome.said}", file=sys.stderr, flush=True)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
