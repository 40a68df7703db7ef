"""Experts onto a CUDA device, by a stream of their own beside the one that computes.

A copy begins once the work that read its place is done; that the device keeps by itself. The host waits for a copy
that a step wants, with a bound, since it must know the routing before it can go on anyway. Not proved on a device; the
fake driver keeps the order.
"""

from contextlib import ExitStack
from typing import Protocol

from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.streams import Event, Stream
from headrace.executor.cuda.uploads import PINNED_BYTES_PER_S
from headrace.executor.event_wait import EventWait
from headrace.executor.experts.store import ExpertMemory


class Recording(Protocol):
    """The stream that computes."""

    def record(self, event: Event) -> None: ...


class CudaCopies:
    """From page-locked memory `source` to `num_slots` places a layer from `base_address` on, layer after layer."""

    def __init__(
        self,
        device: CudaDevice,
        source: ExpertMemory,
        base_address: int,
        num_slots: int,
        compute: Recording,
        waits: EventWait,
    ) -> None:
        self._source, self._base_address, self._num_slots = source, base_address, num_slots
        self._compute, self._waits = compute, waits
        with ExitStack() as held:
            self._stream = held.enter_context(Stream(device))
            places = range(source.layout.num_layers * num_slots)
            self._copied = [held.enter_context(Event(device)) for _ in places]
            self._read = [held.enter_context(Event(device)) for _ in places]
            self._held = held.pop_all()
        self._num_waiting = 0

    def start(self, layer: int, expert: int, slot: int, *, urgent: bool) -> "_CudaLoad":
        """In order of calls: a stream cannot be overtaken, so few copies are begun ahead."""
        place = layer * self._num_slots + slot
        size_bytes = self._source.layout.expert_bytes
        self._stream.wait(self._read[place])
        self._stream.to_device(self._base_address + place * size_bytes, self._source.address(layer, expert), size_bytes)
        self._stream.record(self._copied[place])
        self._num_waiting += 1
        return _CudaLoad(self, self._copied[place])

    def used(self, layer: int, slot: int) -> None:
        self._compute.record(self._read[layer * self._num_slots + slot])

    def wait(self, copied: Event) -> None:
        """For a load. Those before it in the stream come first."""
        predicted_s = self._num_waiting * self._source.layout.expert_bytes / PINNED_BYTES_PER_S
        self._waits.wait(copied, "an expert's copy to the device", predicted_s)

    def finished(self) -> None:
        """For a load that is seen to be over, once."""
        self._num_waiting -= 1

    def close(self) -> None:
        self._held.close()


class _CudaLoad:
    def __init__(self, copies: CudaCopies, copied: Event) -> None:
        self._copies, self._copied = copies, copied
        self._over = False

    def done(self) -> bool:
        if not self._over and self._copied.fired():
            self._over = True
            self._copies.finished()
        return self._over

    def hurry(self) -> None:
        """Nothing: copies come in order."""

    def wait(self) -> None:
        if not self._over:
            self._copies.wait(self._copied)
        self.done()
