"""How experts come onto a device: what is asked of copies, and the host's stand-in for a device's copy engine.

The stand-in copies within the host's memory in a thread of its own, what is waited for before what is fetched ahead,
as a device's copies run beside its work.
"""

import ctypes
import itertools
import queue
import threading
import time
from typing import Protocol

from headrace.core.errors import DeviceFault
from headrace.executor.experts.store import ExpertMemory

_URGENT, _AHEAD, _LAST = 0, 1, 2
_COPY_TIMEOUT_S = 60.0


class Load(Protocol):
    """A copy under way."""

    def done(self) -> bool:
        """Raises DeviceFault where the device has failed."""

    def hurry(self) -> None:
        """Somebody waits for it now."""

    def wait(self) -> None:
        """Until the expert is there. Raises DeviceFault where it does not come in time."""


class ExpertCopies(Protocol):
    """Copies experts into their places on the device. All from the step loop's thread."""

    def start(self, layer: int, expert: int, slot: int, *, urgent: bool) -> Load:
        """Begins after all work has read the place that was given before `used` was last called for it."""

    def used(self, layer: int, slot: int) -> None:
        """Work that reads the place has been given to the device."""

    def close(self) -> None:
        """After all copies have been made, or given up. Harmless when repeated."""


class HostCopies:
    """From one host memory to another. With `link_bytes_per_s` no copy is faster than a link of that speed, which
    stands for a device that is not there."""

    def __init__(self, source: ExpertMemory, target: ExpertMemory, link_bytes_per_s: float | None = None) -> None:
        self._source, self._target = source, target
        self._link_bytes_per_s = link_bytes_per_s
        self._orders: queue.PriorityQueue[tuple[int, int, _HostLoad | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="expert-copies", daemon=True)
        self._thread.start()

    def start(self, layer: int, expert: int, slot: int, *, urgent: bool) -> "_HostLoad":
        addresses = self._target.address(layer, slot), self._source.address(layer, expert)
        load = _HostLoad(self, *addresses)
        self.order(load, urgent)
        return load

    def order(self, load: "_HostLoad", urgent: bool) -> None:
        """Once more, where it was not urgent before: the first order counts."""
        self._orders.put((_URGENT if urgent else _AHEAD, next(self._numbers), load))

    def used(self, layer: int, slot: int) -> None:
        """Nothing to do: on the host work is over when the call that does it returns."""

    def close(self) -> None:
        if self._thread.is_alive():
            self._orders.put((_LAST, next(self._numbers), None))
            self._thread.join(_COPY_TIMEOUT_S)

    def _run(self) -> None:
        size_bytes = self._source.layout.expert_bytes
        while True:
            _, _, load = self._orders.get()
            if load is None:
                return
            if load.done():
                continue
            begun = time.perf_counter()
            ctypes.memmove(load.target, load.source, size_bytes)  # releases the GIL
            if self._link_bytes_per_s is not None:
                time.sleep(max(0.0, size_bytes / self._link_bytes_per_s - (time.perf_counter() - begun)))
            load.finish()


class _HostLoad:
    def __init__(self, copies: HostCopies, target: int, source: int) -> None:
        self.target, self.source = target, source
        self._copies = copies
        self._there = threading.Event()

    def done(self) -> bool:
        return self._there.is_set()

    def finish(self) -> None:
        self._there.set()

    def hurry(self) -> None:
        if not self.done():
            self._copies.order(self, urgent=True)

    def wait(self) -> None:
        if not self._there.wait(_COPY_TIMEOUT_S):
            raise DeviceFault(f"an expert has not come within {_COPY_TIMEOUT_S:g} s")
