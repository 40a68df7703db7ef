"""The processor, out of /proc/cpuinfo, the CPUs that the process may run on, and its cgroups' limits."""

import math

from headrace.executor.hardware.device import Cpu, Device, DeviceKind

_X86 = {
    "x86-64-amx": {"amx_tile", "amx_int8", "amx_bf16"},
    "x86-64-avx512-bf16": {"avx512f", "avx512_vnni", "avx512_bf16"},
    "x86-64-avx512-vnni": {"avx512f", "avx512_vnni"},
    "x86-64-avx-vnni": {"avx2", "avx_vnni"},
    "x86-64-avx512": {"avx512f"},
    "x86-64-avx2": {"avx2"},
}
_ARM = {
    "arm64-i8mm-bf16": {"i8mm", "bf16"},
    "arm64-dotprod": {"asimddp"},
}
"""Architectures by the instructions that they must have, the best first."""
_BF16 = {"amx_bf16", "avx512_bf16", "bf16"}
_ARM_PARTS = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
    ("0x41", "0xd84"): "Arm Neoverse V3",
    ("0x41", "0xd8e"): "Arm Neoverse N3",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""(implementer, part) as the kernel prints them."""


def parse_cpu(cpuinfo: str, meminfo: str, allowed: str, quotas: str, memory_limits: str) -> Cpu:
    """`allowed` is a list of CPUs as the kernel writes it (0-3,8); `quotas` are lines of cpu.max and `memory_limits`
    lines of memory.max, one for each cgroup around the process. What is missing is taken to be without limit."""
    processors = [_fields(block) for block in cpuinfo.split("\n\n") if block.strip()]
    first = processors[0] if processors else {}
    num_processors = sum("processor" in each for each in processors) or 1
    sockets = {(each["physical id"], each["core id"]) for each in processors if "core id" in each}
    features = frozenset((first.get("flags") or first.get("Features") or "").split())
    num_allowed = count_cpus(allowed) or num_processors
    quota = min((_quota(line) for line in quotas.splitlines()), default=math.inf)
    num_threads = max(1, min(num_allowed, math.floor(min(quota, num_allowed))))
    limit = ""
    if quota < num_allowed:
        limit = f"a cgroup allows {quota:g} processors"
    elif num_allowed < num_processors:
        limit = f"affinity allows {num_allowed} of {num_processors} processors"
    device = Device(
        DeviceKind.CPU,
        0,
        _name(first),
        _architecture(features, "flags" in first),
        _memory_bytes(meminfo, memory_limits),
        features=features & set().union(*_X86.values(), *_ARM.values()),
    )
    numbers = [f"{key.split()[-1]} {first[key]}" for key in ("cpu family", "model") if first.get(key)]
    return Cpu(device, num_threads, len(sockets) or num_processors, num_processors, limit, " ".join(numbers))


def multiplies_bf16(device: Device) -> bool:
    return not _BF16.isdisjoint(device.features)


def count_cpus(listed: str) -> int:
    """Of a list like 0-3,8."""
    ranges = [part.split("-") for part in listed.strip().split(",") if part]
    return sum(int(each[-1]) - int(each[0]) + 1 for each in ranges)


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def _name(processor: dict[str, str]) -> str:
    """Arm kernels give numbers only."""
    part = (processor.get("CPU implementer", ""), processor.get("CPU part", ""))
    name = processor.get("model name") or _ARM_PARTS.get(part) or " ".join(filter(None, part))
    return " ".join(name.split()) or "unknown processor"


def _architecture(features: frozenset[str], x86: bool) -> str:
    known, other = (_X86, "x86-64") if x86 else (_ARM, "arm64" if features else "unknown")
    return next((name for name, wanted in known.items() if wanted <= features), other)


def _quota(line: str) -> float:
    """Processors that `QUOTA PERIOD` in microseconds allows."""
    quota, _, period = line.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() and int(period) else math.inf


def _memory_bytes(meminfo: str, limits: str) -> int:
    """What the machine has, or the least of the limits."""
    total_kb = _fields(meminfo).get("MemTotal", "0 kB").split()[0]
    sizes = [int(line) for line in limits.split() if line.isdigit()]
    return min([int(total_kb) * 1024, *sizes]) if int(total_kb) else min(sizes, default=0)
