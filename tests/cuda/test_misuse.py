"""The fake driver refuses each misuse as CUDA documents it, stays broken where a context does, and tells leaks."""

import threading

import pytest

from headrace.benchmarks.gpu_check.misuses import MISUSES, Misuse, Trial, outcome
from headrace.core.errors import EngineNotReady
from headrace.executor.cuda.bindings import Bindings
from headrace.executor.cuda.device import SUCCESS, CudaDevice
from headrace.executor.cuda.fake.driver import FakeCuda
from headrace.executor.cuda.fake.values import Limits, Result
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.cuda.streams import Stream
from headrace.executor.memory.cuda_arena import CudaArena
from headrace.executor.memory.driver import DriverFault

GRANULE = Limits().granule_bytes


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda each: each.name)
def test_each_misuse_is_refused(misuse: Misuse) -> None:
    assert outcome(misuse, FakeCuda(), busy_bytes=8 << 20) == misuse.result


def test_right_use_is_not_refused() -> None:
    def use(trial: Trial) -> None:
        address = trial.mapped(3)
        trial.memory.set_access(address, 3 * trial.granule)
        with Stream(trial.device) as stream:
            stream.fill(address, 7, 3 * trial.granule)
            stream.synchronise()
        trial.memory.unmap(address, 3 * trial.granule)
        trial.memory.free(address, 3 * trial.granule)
        trial.device.close()

    fake = FakeCuda()
    assert outcome(Misuse("none", use), fake, 0) == SUCCESS
    assert fake.leaks() == []


def test_nothing_is_called_before_the_driver_is_ready() -> None:
    for call in ("cuCtxGetCurrent", "cuMemGetInfo", "cuDeviceGetCount"):
        assert getattr(FakeCuda(), call)() == (Result.CUDA_ERROR_NOT_INITIALIZED,)


def test_a_bad_address_breaks_all_that_comes_after() -> None:
    fake: Bindings = FakeCuda()
    trial = Trial(fake, 0)
    address = trial.mapped()
    stream = Stream(trial.device)
    stream.fill(address, 1, GRANULE)
    trial.memory.unmap(address, GRANULE)
    with pytest.raises(DriverFault, match="ILLEGAL_ADDRESS"):
        stream.synchronise()
    for call in (lambda: trial.memory.create(GRANULE), trial.device.memory_bytes, lambda: Stream(trial.device)):
        with pytest.raises(DriverFault, match="ILLEGAL_ADDRESS"):
            call()


@pytest.mark.parametrize(
    ("forget", "leak"),
    [
        (lambda trial: trial.memory.reserve(GRANULE), "1 address ranges"),
        (lambda trial: trial.memory.create(GRANULE), "1 handles"),
        (lambda trial: trial.mapped(), "1 mappings"),
        (lambda trial: trial.pages.host_alloc(4096), "1 locked allocations"),
        (lambda trial: Stream(trial.device), "1 streams"),
    ],
)
def test_what_is_not_returned_is_told(forget, leak: str) -> None:  # type: ignore[no-untyped-def]
    fake = FakeCuda()
    trial = Trial(fake, 0)
    kept = forget(trial)
    trial.device.close()
    assert kept is not None
    assert leak in fake.leaks()


def test_an_arena_that_is_not_closed_leaks_and_one_that_is_does_not() -> None:
    fake = FakeCuda()
    with CudaDevice(fake) as device:
        arena = CudaArena(CudaMemory(device), 4 * GRANULE)
        arena.map_range(0, 2 * GRANULE)
        assert fake.leaks() == ["1 address ranges", "2 mappings", "1 contexts"]
        arena.close()
    assert fake.leaks() == []


def test_each_thread_gets_the_context() -> None:
    with CudaDevice(FakeCuda()) as device:
        errors: list[Exception] = []

        def use() -> None:
            try:
                Stream(device).close()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert errors == []


def test_two_devices_in_one_thread_keep_their_contexts() -> None:
    fake = FakeCuda(Limits(num_devices=2))
    with CudaDevice(fake) as one, CudaDevice(fake, 1) as other, Stream(one) as first, Stream(other) as second:
        assert [fake.work.stream(each.number).context for each in (first, second)] == [one.context, other.context]
        with CudaArena(CudaMemory(one), GRANULE) as arena:
            arena.map_range(0, GRANULE)
            for _ in range(2):
                first.fill(arena.address, 1, GRANULE)
                assert other.memory_bytes()[0] == fake.limits.memory_bytes
                assert one.memory_bytes()[0] == fake.limits.memory_bytes - GRANULE
            first.synchronise()


def test_peers_reach_the_memory_or_are_refused() -> None:
    fake = FakeCuda(Limits(num_devices=2))
    with CudaDevice(fake) as device, CudaDevice(fake, 1) as other:
        with CudaArena(CudaMemory(device, peers=(1,)), GRANULE) as arena, Stream(other) as stream:
            arena.map_range(0, GRANULE)
            stream.fill(arena.address, 5, GRANULE)
            stream.synchronise()
            assert fake.memory.read(arena.address, 2) == b"\5\5"
        with CudaArena(CudaMemory(device), GRANULE) as alone, Stream(other) as stream:
            alone.map_range(0, GRANULE)
            with pytest.raises(DriverFault, match="INVALID_VALUE"):
                stream.fill(alone.address, 5, GRANULE)
    apart = FakeCuda(Limits(num_devices=2, peers=False))
    with CudaDevice(apart) as device, pytest.raises(EngineNotReady, match="device 1 cannot reach"):
        CudaMemory(device, peers=(1,))


def test_no_device_is_one_line() -> None:
    with pytest.raises(EngineNotReady, match=r"no CUDA device 0: cuInit: CUDA_ERROR_NO_DEVICE"):
        CudaDevice(FakeCuda(Limits(num_devices=0)))
    with pytest.raises(EngineNotReady, match=r"no CUDA device 3: .*INVALID_DEVICE"):
        CudaDevice(FakeCuda(), 3)
