"""The calls about memory, of the devices and of the host."""

from headrace.executor.cuda.fake import values
from headrace.executor.cuda.fake.process import CONTEXT_BASE, Process, answers
from headrace.executor.cuda.fake.values import require


class MemoryCalls(Process):
    """Those of Bindings that begin with cuMem and move no bytes."""

    @answers
    def cuMemGetInfo(self) -> tuple[int, int]:
        total = self.limits.memory_bytes
        return total - self.memory.used_bytes(self.context() - CONTEXT_BASE), total

    @answers
    def cuMemGetAllocationGranularity(self, prop: values.AllocationProp, option: int) -> int:
        require(prop.type == values.AllocationType.CU_MEM_ALLOCATION_TYPE_PINNED)
        return self.limits.granule_bytes

    @answers
    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> int:
        require(flags == 0)
        return self.memory.reserve(size, alignment)

    @answers
    def cuMemAddressFree(self, address: int, size: int) -> None:
        self.memory.free(address, size)

    @answers
    def cuMemCreate(self, size: int, prop: values.AllocationProp, flags: int) -> int:
        require(flags == 0)
        return self.memory.create(size, prop)

    @answers
    def cuMemRelease(self, handle: int) -> None:
        self.memory.release(handle)

    @answers
    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> None:
        require(flags == 0)
        self.memory.map(address, size, offset, handle)

    @answers
    def cuMemSetAccess(self, address: int, size: int, descriptions: list[values.AccessDesc], count: int) -> None:
        self.memory.set_access(address, size, descriptions[:count])

    @answers
    def cuMemUnmap(self, address: int, size: int) -> None:
        """Work that is still given to the range meets a bad address when its time comes."""
        self.memory.unmap(address, size)

    @answers
    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        self.context()
        return self.pages.alloc(size)

    @answers
    def cuMemFreeHost(self, address: int) -> None:
        self.context()
        self.finish()
        self.pages.free(address)

    @answers
    def cuMemHostRegister(self, address: int, size: int, flags: int) -> None:
        self.context()
        self.pages.register(address, size)

    @answers
    def cuMemHostUnregister(self, address: int) -> None:
        self.context()
        self.finish()
        self.pages.unregister(address)
