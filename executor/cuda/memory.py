"""A device's memory over the driver's virtual memory calls, and the host's pages that it reads by itself."""

from collections.abc import Sequence

from headrace.core.errors import EngineNotReady
from headrace.executor.cuda.device import CudaDevice

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTREGISTER_PORTABLE: locked for every device


class CudaMemory:
    """Implements MemoryDriver: memory on `device`, which it and the devices numbered `peers` may read and write."""

    def __init__(self, device: CudaDevice, peers: Sequence[int] = ()) -> None:
        """Raises EngineNotReady where a peer cannot reach the device's memory."""
        self._device, cuda = device, device.bindings
        self._prop = cuda.CUmemAllocationProp()
        self._prop.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._prop.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._prop.location.id = device.device
        for peer in peers:
            if not device.call(cuda.cuDeviceCanAccessPeer, peer, device.device):
                raise EngineNotReady(f"CUDA device {peer} cannot reach the memory of device {device.ordinal}")
        self._access = [self._description(each) for each in (device.device, *peers)]
        least = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity_bytes = int(device.call(cuda.cuMemGetAllocationGranularity, self._prop, least))

    def reserve(self, size_bytes: int) -> int:
        return int(self._device.call(self._device.bindings.cuMemAddressReserve, size_bytes, 0, 0, 0))

    def free(self, address: int, size_bytes: int) -> None:
        self._device.call(self._device.bindings.cuMemAddressFree, address, size_bytes)

    def create(self, size_bytes: int) -> int:
        return int(self._device.call(self._device.bindings.cuMemCreate, size_bytes, self._prop, 0))

    def release(self, handle: int) -> None:
        self._device.call(self._device.bindings.cuMemRelease, handle)

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        self._device.call(self._device.bindings.cuMemMap, address, size_bytes, 0, handle, 0)

    def set_access(self, address: int, size_bytes: int) -> None:
        access = self._access
        self._device.call(self._device.bindings.cuMemSetAccess, address, size_bytes, access, len(access))

    def unmap(self, address: int, size_bytes: int) -> None:
        self._device.call(self._device.bindings.cuMemUnmap, address, size_bytes)

    def _description(self, device: int) -> object:
        cuda = self._device.bindings
        description = cuda.CUmemAccessDesc()
        description.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        description.location.id = device
        description.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return description


class CudaPages:
    """Implements PinDriver: page-locked memory of the host."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def host_alloc(self, size_bytes: int) -> int:
        return int(self._device.call(self._device.bindings.cuMemHostAlloc, size_bytes, _PORTABLE))

    def host_free(self, address: int) -> None:
        self._device.call(self._device.bindings.cuMemFreeHost, address)

    def host_register(self, address: int, size_bytes: int) -> None:
        self._device.call(self._device.bindings.cuMemHostRegister, address, size_bytes, _PORTABLE)

    def host_unregister(self, address: int) -> None:
        self._device.call(self._device.bindings.cuMemHostUnregister, address)
