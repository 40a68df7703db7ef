"""Payloads to a device beside what it computes: the next one is copied while the last one is read.

Each payload goes through a page-locked buffer to one of a few places on the device, in turns. Three checkpoints keep
them apart: the host fills a buffer again once its copy has been made, a copy begins once the work that read its place
is done, and work begins once its copy is there. The first is waited for on the host, with a bound; the others by the
device itself.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.streams import Event, Stream
from headrace.executor.event_wait import EventWait
from headrace.executor.memory.pinned import PinnedPool

PINNED_BYTES_PER_S = 5e9
"""What a copy from page-locked memory does at the least, on any device of today: predicts how long one takes."""


class Uploads:
    """Payloads of up to `pool.buffer_bytes` to the places at `addresses`, for work on `compute`.

    The pool must have a buffer for each place. Use as a context manager, within those of the streams and the pool.
    """

    def __init__(
        self, device: CudaDevice, pool: PinnedPool, addresses: Sequence[int], compute: Stream, waits: EventWait
    ) -> None:
        if not addresses:
            raise ValueError("payloads want a place on the device")
        self._pool = pool
        self._addresses = tuple(addresses)
        self._compute = compute
        self._waits = waits
        self._next = 0
        with ExitStack() as held:
            self._buffers = [held.enter_context(pool.buffer()) for _ in addresses]
            self._copies = held.enter_context(Stream(device))
            self._copied = [held.enter_context(Event(device)) for _ in addresses]
            self._read = [held.enter_context(Event(device)) for _ in addresses]
            self._held = held.pop_all()

    @contextmanager
    def put(self, payload: bytes | memoryview, step_s: float | None = None) -> Iterator[int]:
        """The payload's address on the device, for work that is given to `compute` within the block.

        `step_s` is how long the work that reads a payload is predicted to take, None where that is not known. Raises
        ValueError for one that is too long, and DeviceFault where the buffer is not free in time.
        """
        size = len(payload)
        if not 0 < size <= self._pool.buffer_bytes:
            raise ValueError(f"a payload of {size} bytes does not fit a buffer of {self._pool.buffer_bytes}")
        place = self._next
        self._next = (place + 1) % len(self._addresses)
        buffer, address = self._buffers[place], self._addresses[place]
        # the buffer's copy may itself wait for the work that read its place before
        copy_s = self._pool.buffer_bytes / PINNED_BYTES_PER_S
        self._waits.wait(self._copied[place], "a copy to the device", None if step_s is None else step_s + copy_s)
        buffer[:size] = payload
        self._copies.wait(self._read[place])
        self._copies.to_device(address, ctypes.addressof(ctypes.c_uint8.from_buffer(buffer)), size)
        self._copies.record(self._copied[place])
        self._compute.wait(self._copied[place])
        try:
            yield address
        finally:
            self._compute.record(self._read[place])

    def close(self) -> None:
        """After all copies have been made. Harmless when repeated."""
        for copied in self._copied:
            self._waits.wait(copied, "a copy to the device", None)
        self._copied = []
        self._held.close()

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
