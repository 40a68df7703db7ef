"""When a wait is late, when it is a fault, and that neither is told twice. In virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DeviceFault
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.cuda.streams import Event, Stream
from headrace.executor.event_wait import (
    FAULT_S,
    FIRST_STEPS_S,
    EventWait,
    Lateness,
    OverdueWait,
    is_fault,
    is_late,
)
from headrace.executor.memory.cuda_arena import CudaArena


class Clock:
    """An event that fires at `at_s`, on a clock that sleeping moves."""

    def __init__(self, at_s: float) -> None:
        self.now_s, self._at_s = 100.0, 100.0 + at_s
        self.told: list[OverdueWait] = []
        self.waits = EventWait(self.told.append, now=lambda: self.now_s, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def fired(self) -> bool:
        return self.now_s >= self._at_s


def test_an_event_in_time_is_not_told() -> None:
    clock = Clock(0.2)
    assert clock.waits.wait(clock, "a step", 0.1) == pytest.approx(0.2, abs=0.01)
    assert clock.told == []


def test_an_event_that_comes_late_is_told_once() -> None:
    clock = Clock(3.0)
    clock.waits.wait(clock, "a step", 0.1)
    (wait,) = clock.told
    assert (wait.what, wait.lateness, wait.predicted_s) == ("a step", Lateness.LATE, 0.1)
    assert wait.waited_s == pytest.approx(0.4, abs=0.01)


def test_an_event_that_never_comes_is_a_fault() -> None:
    clock = Clock(1e9)
    with pytest.raises(DeviceFault, match=r"a step since 5\.0 s; it was expected after 10\.0 ms"):
        clock.waits.wait(clock, "a step", 0.01)
    assert [wait.lateness for wait in clock.told] == [Lateness.LATE, Lateness.FAULT]


def test_the_first_steps_may_take_long() -> None:
    clock = Clock(FIRST_STEPS_S - 1)
    clock.waits.wait(clock, "a step", None)
    assert clock.told == []
    never = Clock(1e9)
    with pytest.raises(DeviceFault, match="unknown time"):
        never.waits.wait(never, "a step", None)


@given(predicted_s=st.floats(1e-5, 60), took_s=st.floats(0, 1e4))
def test_a_fault_is_late_and_nothing_in_its_time_is(predicted_s: float, took_s: float) -> None:
    assert is_late(predicted_s, took_s) or not is_fault(predicted_s, took_s)
    assert not is_late(predicted_s, min(took_s, predicted_s))
    assert not is_fault(predicted_s, min(took_s, FAULT_S))


def test_work_on_memory_that_is_gone_is_a_fault() -> None:
    fake = FakeCuda()
    waits = EventWait(lambda wait: None, now=fake.now, sleep=fake.advance)
    with CudaDevice(fake) as device:
        memory = CudaMemory(device)
        arena, stream, event = CudaArena(memory, 1), Stream(device), Event(device)
        arena.map_range(0, 1)
        stream.fill(arena.address, 1, arena.page_bytes)
        stream.record(event)
        arena.release_range(0, arena.page_bytes)
        with pytest.raises(DeviceFault, match=r"failed at a step: cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS"):
            waits.wait(event, "a step", 0.01)
        fake.broken = None  # so that what is left can be closed
        for each in (arena, event, stream):
            each.close()


def test_a_stream_that_stalls_is_found_on_the_fake_device() -> None:
    fake, told = FakeCuda(), []
    waits = EventWait(told.append, now=fake.now, sleep=fake.advance)
    with CudaDevice(fake) as device, Stream(device) as stream, Event(device) as event:
        stream.record(event)
        waits.wait(event, "a step", 0.01)
        assert told == []
        fake.stall(stream.number)
        stream.record(event)
        with pytest.raises(DeviceFault):
            waits.wait(event, "a step", 0.01)
        assert len(told) == 2
    assert fake.leaks() == []
