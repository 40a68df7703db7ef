"""All experts of a model in the host's memory, where a device can read them, and their places on the device."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from headrace.core.errors import EngineNotReady
from headrace.executor.memory.driver import OutOfDeviceMemory
from headrace.executor.memory.pinned import HostMemory

_ALIGN_BYTES = 64  # a cache line: products over it take the same kernels wherever an expert lies


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """An expert as one run of bytes: each part's place in it, by name. `item_bytes` are those of a weight."""

    num_layers: int
    num_experts: int
    shapes: Mapping[str, tuple[int, ...]]
    item_bytes: int

    @property
    def expert_bytes(self) -> int:
        """Of one, its parts on cache lines of their own."""
        return sum(map(self.part_bytes_aligned, self.shapes))

    def part_bytes(self, name: str) -> int:
        return prod(self.shapes[name]) * self.item_bytes

    def part_bytes_aligned(self, name: str) -> int:
        return -(-self.part_bytes(name) // _ALIGN_BYTES) * _ALIGN_BYTES

    def offset(self, name: str) -> int:
        """Of a part within its expert. Raises KeyError."""
        offset = 0
        for each in self.shapes:
            if each == name:
                return offset
            offset += self.part_bytes_aligned(each)
        raise KeyError(name)


class ExpertMemory:
    """`num_each` experts of each layer, in memory of the host. Use as a context manager."""

    def __init__(self, memory: HostMemory, layout: ExpertLayout, num_each: int) -> None:
        """Raises EngineNotReady where there is not so much."""
        self.layout, self.num_each = layout, num_each
        self._memory = memory
        self._layers: list[memoryview] = []
        size_bytes = num_each * layout.expert_bytes
        try:
            for _ in range(layout.num_layers):
                self._layers.append(memory.allocate(size_bytes))
        except (OutOfDeviceMemory, OSError) as error:
            self.close()
            raise EngineNotReady(
                f"no memory for {num_each} experts of {layout.expert_bytes} bytes in each of {layout.num_layers} layers"
            ) from error

    @property
    def size_bytes(self) -> int:
        return len(self._layers) * self.num_each * self.layout.expert_bytes

    def part(self, layer: int, number: int, name: str) -> memoryview:
        """One part's bytes, writable. Raises IndexError where there is no such expert."""
        if not 0 <= number < self.num_each:
            raise IndexError(f"expert {number} of {self.num_each}")
        begin = number * self.layout.expert_bytes + self.layout.offset(name)
        return self._layers[layer][begin : begin + self.layout.part_bytes(name)]

    def address(self, layer: int, number: int) -> int:
        """Where an expert begins. Raises IndexError."""
        if not 0 <= number < self.num_each:
            raise IndexError(f"expert {number} of {self.num_each}")
        base = ctypes.addressof(ctypes.c_uint8.from_buffer(self._layers[layer]))
        return base + number * self.layout.expert_bytes

    def close(self) -> None:
        """Returns the memory. Harmless when repeated."""
        for layer in self._layers:
            self._memory.free(layer)
        self._layers = []

    def __enter__(self) -> "ExpertMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
