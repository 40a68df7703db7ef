"""An arena in a device's memory: one reserved address range, physical memory behind the granules that are in use.

The logic follows "Introducing Low-Level GPU Virtual Memory Management" (NVIDIA) and vAttention (arXiv 2405.04437): the
addresses never move, so that kernels and captured graphs keep theirs. It is tested against a driver that refuses every
misuse; it has not been proved on a device. Whoever unmaps has made sure that no kernel still uses the range.
"""

from headrace.core.errors import PoolExhausted
from headrace.executor.memory.arena import whole_pages
from headrace.executor.memory.driver import MemoryDriver, OutOfDeviceMemory


class CudaArena:
    """`size_bytes`, rounded up to whole granules, at `address`. Implements Arena; use as a context manager."""

    def __init__(self, driver: MemoryDriver, size_bytes: int) -> None:
        """Raises PoolExhausted where there are not even addresses."""
        if size_bytes < 1:
            raise ValueError(f"an arena of {size_bytes} bytes cannot be")
        self._driver = driver
        self.page_bytes = driver.granularity_bytes
        self.size_bytes = -(-size_bytes // self.page_bytes) * self.page_bytes
        try:
            self.address = driver.reserve(self.size_bytes)
        except OutOfDeviceMemory as error:
            raise PoolExhausted(f"no address range of {self.size_bytes} bytes on the device") from error
        self._mapped: set[int] = set()  # granules by number
        self._open = True

    def map_range(self, offset: int, length: int) -> None:
        """Puts memory behind every granule that the range touches and that has none: all of them, or none and
        PoolExhausted. Raises ValueError if the range is not within the arena."""
        self._check(offset, length)
        first, last = offset // self.page_bytes, -(-(offset + length) // self.page_bytes)
        done: list[int] = []
        try:
            for page in range(first, last):
                if page not in self._mapped:
                    self._map(page)
                    done.append(page)
        except BaseException as error:
            for page in done:
                self._unmap(page)
            if isinstance(error, OutOfDeviceMemory):
                raise PoolExhausted(f"the device has no memory for {length} bytes of KV") from error
            raise

    def release_range(self, offset: int, length: int) -> int:
        """Gives back the memory of granules that lie wholly within the range, and returns how many bytes that is.
        Raises ValueError if the range is not within the arena."""
        self._check(offset, length)
        first, inner = whole_pages(offset, length, self.page_bytes)
        pages = [page for page in range(first // self.page_bytes, (first + inner) // self.page_bytes) if inner]
        gone = [page for page in pages if page in self._mapped]
        for page in gone:
            self._unmap(page)
        return len(gone) * self.page_bytes

    def resident_bytes(self) -> int:
        """Physical memory behind the arena now."""
        return len(self._mapped) * self.page_bytes

    def close(self) -> None:
        """Returns memory and addresses. Harmless when repeated."""
        if self._open:
            self._open = False
            for page in sorted(self._mapped):
                self._unmap(page)
            self._driver.free(self.address, self.size_bytes)

    def __enter__(self) -> "CudaArena":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _map(self, page: int) -> None:
        """One granule: memory, behind its addresses, for the device to use; or nothing at all."""
        address, size = self.address + page * self.page_bytes, self.page_bytes
        handle = self._driver.create(size)
        try:
            self._driver.map(address, size, handle)
            try:
                self._driver.set_access(address, size)
            except BaseException:
                self._driver.unmap(address, size)
                raise
        finally:
            self._driver.release(handle)  # a mapping holds its memory by itself: it goes when it is unmapped
        self._mapped.add(page)

    def _unmap(self, page: int) -> None:
        self._driver.unmap(self.address + page * self.page_bytes, self.page_bytes)
        self._mapped.discard(page)

    def _check(self, offset: int, length: int) -> None:
        if not self._open:
            raise ValueError("the arena is closed")
        if offset < 0 or length < 0 or offset + length > self.size_bytes:
            raise ValueError(f"bytes {offset} to {offset + length} are not within an arena of {self.size_bytes}")
