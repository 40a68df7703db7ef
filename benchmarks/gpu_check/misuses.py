"""Each way to misuse the driver that an executor could have, and the result that the fake gives for it.

The same functions run on the fake in the tests and on a device in scripts/gpu_check, where each has a process of its
own, since some of them end a context for good.
"""

import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass

from headrace.executor.cuda.bindings import Bindings
from headrace.executor.cuda.device import OUT_OF_MEMORY, SUCCESS, CudaDevice
from headrace.executor.cuda.memory import CudaMemory, CudaPages
from headrace.executor.cuda.streams import Event, Stream
from headrace.executor.memory.driver import DriverFault, OutOfDeviceMemory

INVALID = "CUDA_ERROR_INVALID_VALUE"
BAD_HANDLE = "CUDA_ERROR_INVALID_HANDLE"


class Trial:
    """A device to misuse. `busy_bytes` are enough to fill that the device is at it for a while."""

    def __init__(self, bindings: Bindings, busy_bytes: int) -> None:
        self.device = CudaDevice(bindings)
        self.cuda = bindings
        self.memory = CudaMemory(self.device)
        self.pages = CudaPages(self.device)
        self.granule = self.memory.granularity_bytes
        self.busy_bytes = busy_bytes

    def mapped(self, granules: int = 1, access: bool = True) -> int:
        """The address of so many granules with memory behind them."""
        size = granules * self.granule
        address, handle = self.memory.reserve(size), self.memory.create(size)
        self.memory.map(address, size, handle)
        self.memory.release(handle)
        if access:
            self.memory.set_access(address, size)
        return address


@dataclass(frozen=True, slots=True)
class Misuse:
    """`attempt` raises what the driver answers; `result` is the fake's. `documented`: CUDA's reference says so."""

    name: str
    attempt: Callable[[Trial], object]
    result: str = INVALID
    documented: bool = True


def outcome(misuse: Misuse, bindings: Bindings, busy_bytes: int) -> str:
    """The driver's result by name; CUDA_SUCCESS where nothing was refused."""
    try:
        misuse.attempt(Trial(bindings, busy_bytes))
    except DriverFault as fault:
        return fault.result
    except OutOfDeviceMemory:
        return OUT_OF_MEMORY
    return SUCCESS


def _map_before_create(trial: Trial) -> None:
    trial.memory.map(trial.memory.reserve(trial.granule), trial.granule, 0)


def _map_released(trial: Trial) -> None:
    address, handle = trial.memory.reserve(trial.granule), trial.memory.create(trial.granule)
    trial.memory.release(handle)
    trial.memory.map(address, trial.granule, handle)


def _map_nowhere(trial: Trial) -> None:
    address = trial.memory.reserve(trial.granule)
    trial.memory.free(address, trial.granule)
    trial.memory.map(address, trial.granule, trial.memory.create(trial.granule))


def _map_over_the_end(trial: Trial) -> None:
    address = trial.memory.reserve(trial.granule)
    trial.memory.map(address + trial.granule, trial.granule, trial.memory.create(trial.granule))


def _map_twice(trial: Trial) -> None:
    trial.memory.map(trial.mapped(), trial.granule, trial.memory.create(trial.granule))


def _map_unaligned(trial: Trial) -> None:
    address = trial.memory.reserve(2 * trial.granule)
    trial.memory.map(address + 4096, trial.granule, trial.memory.create(trial.granule))


def _use_before_access(trial: Trial) -> None:
    with Stream(trial.device) as stream:
        stream.fill(trial.mapped(access=False), 1, trial.granule)
        stream.synchronise()


def _use_before_map(trial: Trial) -> None:
    with Stream(trial.device) as stream:
        stream.fill(trial.memory.reserve(trial.granule), 1, trial.granule)
        stream.synchronise()


def _unmap_in_use(trial: Trial) -> None:
    granules = -(-trial.busy_bytes // trial.granule)
    address = trial.mapped(granules)
    stream = Stream(trial.device)
    for _ in range(20):
        stream.fill(address, 1, granules * trial.granule)
    trial.memory.unmap(address, granules * trial.granule)
    stream.synchronise()


def _release_twice(trial: Trial) -> None:
    handle = trial.memory.create(trial.granule)
    trial.memory.release(handle)
    trial.memory.release(handle)


def _free_twice(trial: Trial) -> None:
    address = trial.memory.reserve(trial.granule)
    trial.memory.free(address, trial.granule)
    trial.memory.free(address, trial.granule)


def _unmap_twice(trial: Trial) -> None:
    address = trial.mapped()
    trial.memory.unmap(address, trial.granule)
    trial.memory.unmap(address, trial.granule)


def _out_of_memory(trial: Trial) -> None:
    _, total = trial.device.memory_bytes()
    trial.memory.create(-(-total // trial.granule) * trial.granule + trial.granule)


def _host_free_twice(trial: Trial) -> None:
    address = trial.pages.host_alloc(mmap.PAGESIZE)
    trial.pages.host_free(address)
    trial.pages.host_free(address)


def _register_locked(trial: Trial) -> None:
    trial.pages.host_register(trial.pages.host_alloc(mmap.PAGESIZE), mmap.PAGESIZE)


def _unregister_unknown(trial: Trial) -> None:
    trial.pages.host_unregister(mmap.PAGESIZE * 16)


def _thread_without_context(trial: Trial) -> None:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(trial.cuda.cuStreamCreate(1)[0]))
    thread.start()
    thread.join()
    name = getattr(answers[0], "name", "")
    if name != SUCCESS:
        raise DriverFault("cuStreamCreate", name)


def _elapsed_of_no_mark(trial: Trial) -> None:
    with Event(trial.device, timed=True) as start, Event(trial.device, timed=True) as end:
        end.seconds_since(start)


def _elapsed_of_untimed(trial: Trial) -> None:
    with Stream(trial.device) as stream, Event(trial.device) as start, Event(trial.device) as end:
        stream.record(start)
        stream.record(end)
        stream.synchronise()
        end.seconds_since(start)


MISUSES = (
    Misuse("map before create", _map_before_create),
    Misuse("map a released handle", _map_released),
    Misuse("map outside a reservation", _map_nowhere),
    Misuse("map over a reservation's end", _map_over_the_end),
    Misuse("map twice", _map_twice),
    Misuse("map unaligned", _map_unaligned),
    Misuse("create in a wrong granularity", lambda trial: trial.memory.create(trial.granule + 4096)),
    Misuse("create nothing", lambda trial: trial.memory.create(0)),
    Misuse("reserve nothing", lambda trial: trial.memory.reserve(0)),
    Misuse("reserve in a wrong granularity", lambda trial: trial.memory.reserve(trial.granule + 4096)),
    Misuse(
        "access before map",
        lambda trial: trial.memory.set_access(trial.memory.reserve(trial.granule), trial.granule),
    ),
    Misuse("access to a part", lambda trial: trial.memory.set_access(trial.mapped(2), trial.granule)),
    Misuse("use before access", _use_before_access, documented=False),
    Misuse("use before map", _use_before_map, documented=False),
    Misuse("unmap in use", _unmap_in_use, "CUDA_ERROR_ILLEGAL_ADDRESS", documented=False),
    Misuse("unmap a part", lambda trial: trial.memory.unmap(trial.mapped(2), trial.granule)),
    Misuse("unmap twice", _unmap_twice),
    Misuse("release twice", _release_twice),
    Misuse("free while mapped", lambda trial: trial.memory.free(trial.mapped(), trial.granule)),
    Misuse(
        "free a part",
        lambda trial: trial.memory.free(trial.memory.reserve(2 * trial.granule), trial.granule),
    ),
    Misuse("free twice", _free_twice),
    Misuse("more than there is", _out_of_memory, OUT_OF_MEMORY),
    Misuse("free locked pages twice", _host_free_twice),
    Misuse("lock pages twice", _register_locked, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    Misuse("unlock pages that are not locked", _unregister_unknown, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    Misuse("a thread without context", _thread_without_context, "CUDA_ERROR_INVALID_CONTEXT"),
    Misuse("time since no mark", _elapsed_of_no_mark, BAD_HANDLE),
    Misuse("time of untimed marks", _elapsed_of_untimed, BAD_HANDLE),
)
