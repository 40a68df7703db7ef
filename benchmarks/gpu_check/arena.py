"""The arena on the device: addresses stay, memory comes and goes, bytes are kept; what it costs, and under pressure."""

import ctypes
import random
import time
from contextlib import ExitStack

from headrace.benchmarks.gpu_check.check import Figures, Scale, must
from headrace.core.errors import PoolExhausted
from headrace.executor.cuda.device import CudaDevice
from headrace.executor.cuda.memory import CudaMemory
from headrace.executor.cuda.streams import Stream
from headrace.executor.memory.cuda_arena import CudaArena

_PROBE_BYTES = 64
_SLACK_BYTES = 64 << 20
"""What a driver may take for itself meanwhile: code and queues that it loads when they are first used."""


def warm_up(device: CudaDevice) -> None:
    """Does a little of everything once, so that the driver has taken most of its own memory."""
    with CudaArena(CudaMemory(device), 1) as arena, Stream(device) as stream:
        arena.map_range(0, arena.page_bytes)
        stream.fill(arena.address, 1, arena.page_bytes)
        first_byte(stream, arena.address)


def slack_bytes(arena_bytes: int) -> int:
    """How much may be gone that is not the arena's."""
    return min(_SLACK_BYTES, arena_bytes // 8)


def first_byte(stream: Stream, address: int) -> bytes:
    """The bytes at the address, by a copy that is waited for."""
    buffer = ctypes.create_string_buffer(_PROBE_BYTES)
    stream.to_host(ctypes.addressof(buffer), address, _PROBE_BYTES)
    stream.synchronise()
    return buffer.raw


def mapping(device: CudaDevice, scale: Scale) -> Figures:
    """Maps, writes, releases and maps again; times a granule's way in and out."""
    warm_up(device)
    with CudaArena(CudaMemory(device), scale.arena_granules * CudaMemory(device).granularity_bytes) as arena:
        page = arena.page_bytes
        must(arena.resident_bytes() == 0, "an arena that nobody uses has memory")
        free_before, _ = device.memory_bytes()
        begun = time.perf_counter()
        arena.map_range(0, arena.size_bytes)
        map_s = time.perf_counter() - begun
        taken = free_before - device.memory_bytes()[0]
        must(arena.resident_bytes() == arena.size_bytes, "not all is resident")
        must(taken >= arena.size_bytes, f"the device says that {taken} bytes were taken for {arena.size_bytes}")
        with Stream(device) as stream:
            for number in range(scale.arena_granules):
                stream.fill(arena.address + number * page, number & 255, page)
            stream.synchronise()
            begun = time.perf_counter()
            for number in range(0, scale.arena_granules, 2):
                must(arena.release_range(number * page, page) == page, "a granule did not go")
            unmap_s = time.perf_counter() - begun
            for number in range(1, scale.arena_granules, max(1, scale.arena_granules // 16) | 1):
                if number % 2:
                    found = first_byte(stream, arena.address + number * page)
                    must(found == bytes([number & 255]) * _PROBE_BYTES, f"granule {number} lost its bytes")
            arena.map_range(0, arena.size_bytes)
            stream.fill(arena.address, 9, arena.size_bytes)
            stream.synchronise()
    lost = free_before - device.memory_bytes()[0]
    must(lost <= slack_bytes(scale.arena_granules * page), f"{lost} bytes did not come back")
    return {
        "granule_bytes": page,
        "map_us_per_granule": map_s / scale.arena_granules * 1e6,
        "unmap_us_per_granule": unmap_s / (scale.arena_granules / 2) * 1e6,
    }


def fragmentation(device: CudaDevice, scale: Scale) -> Figures:
    """Random granules come and go; all that is free can still be mapped, and nothing is lost."""
    warm_up(device)
    chance = random.Random(7)
    memory = CudaMemory(device)
    page = memory.granularity_bytes
    free_before, _ = device.memory_bytes()
    with CudaArena(memory, 2 * scale.arena_granules * page) as arena:
        mapped: set[int] = set()
        worst = 0
        for _ in range(scale.random_steps):
            number = chance.randrange(2 * scale.arena_granules)
            if number in mapped:
                arena.release_range(number * page, page)
                mapped.remove(number)
            elif len(mapped) < scale.arena_granules:
                arena.map_range(number * page, page)
                mapped.add(number)
            must(arena.resident_bytes() == len(mapped) * page, "the arena's account is wrong")
            taken = free_before - device.memory_bytes()[0]
            worst = max(worst, taken - len(mapped) * page)
        for number in range(2 * scale.arena_granules):
            if len(mapped) == scale.arena_granules:
                break
            if number not in mapped:
                arena.map_range(number * page, page)
                mapped.add(number)
        must(len(mapped) == scale.arena_granules, "not all that was free could be mapped")
    lost = free_before - device.memory_bytes()[0]
    must(lost <= slack_bytes(scale.arena_granules * page), f"{lost} bytes did not come back")
    return {"steps": scale.random_steps, "most_bytes_beside_those_mapped": worst}


def pressure(device: CudaDevice, scale: Scale) -> Figures:
    """The device is filled until it refuses; the refusal changes nothing, and what is given back can be taken again."""
    memory = CudaMemory(device)
    page = memory.granularity_bytes
    _, total = device.memory_bytes()
    chunk = 16 * page
    with ExitStack() as held:
        arena = held.enter_context(CudaArena(memory, (total // chunk + 2) * chunk))
        filled = 0
        refused = ""
        while filled < min(arena.size_bytes, scale.pressure_bytes):
            try:
                arena.map_range(filled, chunk)
            except PoolExhausted as error:
                refused = error.message
                break
            filled += chunk
        must(bool(refused) or filled >= scale.pressure_bytes, "a device gave more memory than it has")
        must(arena.resident_bytes() == filled, "a refusal left something behind")
        if refused:
            arena.release_range(0, chunk)
            arena.map_range(filled, chunk)
            must(arena.resident_bytes() == filled, "what was given back could not be taken again")
    return {"filled_bytes": filled, "of_bytes": total, "refused": refused}
