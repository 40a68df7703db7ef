"""Copies beside work: the right bytes arrive, both overlap, and each checkpoint is needed. In virtual time."""

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DeviceFault
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.fake.values import Limits
from headrace.executor.cuda.memory import CudaMemory, CudaPages
from headrace.executor.cuda.streams import Event, Stream
from headrace.executor.cuda.uploads import Uploads
from headrace.executor.event_wait import EventWait
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.memory.pinned import LockedMemory, PinnedPool

SIZE = mmap.PAGESIZE
COPY_S = 1e-3
"""What a payload of SIZE takes to the fake device."""


class Rig:
    """A fake device with `num_places` places for payloads, and a kernel that adds one to each byte of a payload."""

    def __init__(self, held: ExitStack, num_places: int) -> None:
        self.fake = FakeCuda(Limits(copy_bytes_per_s=SIZE / COPY_S, granule_bytes=SIZE))
        self.device = held.enter_context(CudaDevice(self.fake))
        self.compute = held.enter_context(Stream(self.device))
        pool = held.enter_context(PinnedPool(LockedMemory(CudaPages(self.device)), num_places, SIZE))
        arena = held.enter_context(CudaArena(CudaMemory(self.device), 64 * SIZE))
        arena.map_range(0, arena.size_bytes // 2)
        self.results = arena.address + num_places * SIZE
        self.waits = EventWait(lambda wait: None, now=self.fake.now, sleep=self.fake.advance)
        places = [arena.address + place * SIZE for place in range(num_places)]
        self.uploads = held.enter_context(Uploads(self.device, pool, places, self.compute, self.waits))

    def run(self, payloads: list[bytes], kernel_s: float) -> list[bytes]:
        for number, payload in enumerate(payloads):
            with self.uploads.put(payload, kernel_s) as address:
                self.device.call(
                    self.fake.launch,
                    self.compute.number,
                    kernel_s,
                    (address, len(payload)),
                    self.results + number * SIZE,
                    lambda data: bytes((each + 1) & 255 for each in data),
                )
        self.compute.synchronise()
        return [self.fake.memory.read(self.results + n * SIZE, len(each)) for n, each in enumerate(payloads)]


@contextmanager
def rig(num_places: int) -> Iterator[Rig]:
    with ExitStack() as held:
        made = Rig(held, num_places)
        yield made
    assert made.fake.leaks() == []


def expected(payloads: list[bytes]) -> list[bytes]:
    return [bytes((each + 1) & 255 for each in payload) for payload in payloads]


PAYLOADS = [bytes([number]) * SIZE for number in range(8)]


@given(
    num_places=st.integers(1, 3),
    payloads=st.lists(st.binary(min_size=1, max_size=64), min_size=1, max_size=8),
    kernel_s=st.sampled_from([0.0, 1e-4, 1e-3, 1e-2]),
)
@settings(max_examples=50, deadline=None)
def test_the_right_bytes_arrive(num_places: int, payloads: list[bytes], kernel_s: float) -> None:
    with rig(num_places) as made:
        assert made.run(payloads, kernel_s) == expected(payloads)


def test_copies_run_beside_the_work() -> None:
    taken_s = {}
    for num_places in (1, 2):
        with rig(num_places) as made:
            assert made.run(PAYLOADS, kernel_s=2 * COPY_S) == expected(PAYLOADS)
            taken_s[num_places] = made.fake.now()
    work_s = len(PAYLOADS) * 2 * COPY_S
    assert taken_s[1] > work_s + len(PAYLOADS) * COPY_S
    assert taken_s[2] < work_s + 2 * COPY_S


def no_wait(stream: Stream, event: Event) -> None:
    del stream, event


def no_record(stream: Stream, event: Event) -> None:
    del stream, event


@pytest.mark.parametrize("missing", ["device checkpoints", "host checkpoint"])
def test_without_a_checkpoint_the_bytes_are_wrong(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def never(self: EventWait, event: object, what: str, predicted_s: float | None) -> float:
        return 0.0

    with rig(2) as made:
        with monkeypatch.context() as patched:
            if missing == "device checkpoints":
                patched.setattr(Stream, "wait", no_wait)
            else:
                patched.setattr(EventWait, "wait", never)
            found = made.run(PAYLOADS, kernel_s=COPY_S / 2)
        assert found != expected(PAYLOADS)


def test_a_copy_that_never_ends_is_a_fault() -> None:
    with rig(1) as made:
        for stream in made.fake.work.streams:
            made.fake.stall(stream)
        with pytest.raises(DeviceFault, match="a copy to the device"):
            made.run(PAYLOADS[:2], kernel_s=0.01)
        for stream in made.fake.work.streams:
            made.fake.stall(stream, stalled=False)


@pytest.mark.parametrize("payload", [b"", bytes(SIZE + 1)])
def test_what_does_not_fit_is_refused(payload: bytes) -> None:
    with rig(1) as made, pytest.raises(ValueError, match="does not fit"), made.uploads.put(payload):
        pass
