"""The names and structures that cuda.bindings.driver has, as far as they are used."""

from dataclasses import dataclass, field
from enum import IntEnum


class Result(IntEnum):
    """Some of CUresult."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713


class AllocationType(IntEnum):
    CU_MEM_ALLOCATION_TYPE_INVALID = 0
    CU_MEM_ALLOCATION_TYPE_PINNED = 1


class LocationType(IntEnum):
    CU_MEM_LOCATION_TYPE_INVALID = 0
    CU_MEM_LOCATION_TYPE_DEVICE = 1


class AccessFlags(IntEnum):
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3


class GranularityFlags(IntEnum):
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1


class StreamFlags(IntEnum):
    CU_STREAM_DEFAULT = 0
    CU_STREAM_NON_BLOCKING = 1


class EventFlags(IntEnum):
    CU_EVENT_DEFAULT = 0
    CU_EVENT_DISABLE_TIMING = 2


@dataclass
class Location:
    type: LocationType = LocationType.CU_MEM_LOCATION_TYPE_INVALID
    id: int = 0


@dataclass
class AllocationProp:
    type: AllocationType = AllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    location: Location = field(default_factory=Location)


@dataclass
class AccessDesc:
    location: Location = field(default_factory=Location)
    flags: AccessFlags = AccessFlags.CU_MEM_ACCESS_FLAGS_PROT_NONE


class Failure(Exception):
    """A call ends with this result."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.name)
        self.result = result


def require(holds: bool, result: Result = Result.CUDA_ERROR_INVALID_VALUE) -> None:
    """Raises Failure with the result where it does not hold."""
    if not holds:
        raise Failure(result)


@dataclass
class Limits:
    """What a fake device has. `granule_bytes` is the least that is mapped at once; `peers` whether devices reach each
    other; bandwidths are those of copies and of memory. Each call takes `call_s` of the device's clock."""

    memory_bytes: int = 64 << 20
    pinned_bytes: int = 64 << 20
    address_bytes: int = 1 << 47
    granule_bytes: int = 2 << 20
    num_devices: int = 1
    peers: bool = True
    copy_bytes_per_s: float = 25e9
    memory_bytes_per_s: float = 2e12
    call_s: float = 0.0
