"""Each misuse on the device and on the fake driver: what the two say. A process a misuse, since some end a context."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.benchmarks.gpu_check.check import Figures, Scale
from headrace.benchmarks.gpu_check.misuses import MISUSES, Misuse, outcome
from headrace.executor.cuda.bindings import load_bindings
from headrace.executor.cuda.fake.driver import FakeCuda

_BOUND_S = 60.0
_AT_ONCE = 4
_MODULE = "headrace.benchmarks.gpu_check.faithful"
FAKE_BUSY_BYTES = 8 << 20

Ask = Callable[[Misuse, int], str]
"""The result of a misuse, by name, on a device whose busy bytes are so many."""


def on_device(misuse: Misuse, busy_bytes: int) -> str:
    """In a process of its own; how that ended where it did not answer."""
    command = (sys.executable, "-m", _MODULE, misuse.name, str(busy_bytes))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_BOUND_S:g} s"
    lines = done.stdout.split()
    return lines[-1] if done.returncode == 0 and lines else f"ended with {done.returncode}"


def compare(scale: Scale, ask: Ask = on_device, misuses: Sequence[Misuse] = MISUSES) -> Figures:
    """By misuse: the fake's result and the device's. `unfaithful` are those that CUDA documents and that differ;
    `undocumented` those that it does not, where the fake is only stricter."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda misuse: ask(misuse, scale.busy_bytes), misuses))
    rows = [
        {"misuse": misuse.name, "fake": outcome(misuse, FakeCuda(), FAKE_BUSY_BYTES), "device": device}
        for misuse, device in zip(misuses, found, strict=True)
    ]
    differ = [(misuse, row) for misuse, row in zip(misuses, rows, strict=True) if row["fake"] != row["device"]]
    return {
        "rows": rows,
        "unfaithful": [row["misuse"] for misuse, row in differ if misuse.documented],
        "undocumented": [row["misuse"] for misuse, row in differ if not misuse.documented],
    }


def main(name: str, busy_bytes: int) -> None:
    """One misuse on the device, its result on the standard output."""
    misuse = next(each for each in MISUSES if each.name == name)
    print(outcome(misuse, load_bindings(), busy_bytes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
