"""The processor's clock and what has held it down, out of the kernel's files; nothing where a machine has none."""

from collections.abc import Iterable
from pathlib import Path

from headrace.executor.hardware.reading import HEAT, DeviceReading

SYSTEM = Path("/sys/devices/system/cpu")
_NOW, _MOST = "cpufreq/scaling_cur_freq", "cpufreq/cpuinfo_max_freq"
_HELD = ("thermal_throttle/core_throttle_total_time_ms", "thermal_throttle/package_throttle_total_time_ms")


def read_cpu_clock(cpus: Iterable[int], system: Path = SYSTEM) -> DeviceReading:
    """Of the processors named. The fastest core counts: one that idles is slow by intent. Of the times that cores and
    their package were held down, the longest."""
    folders = [system / f"cpu{number}" for number in cpus]
    now_khz, most_khz = (max((_number(folder / name) for folder in folders), default=0) for name in (_NOW, _MOST))
    held_ms = max((_number(folder / name) for folder in folders for name in _HELD), default=0)
    return DeviceReading(
        clock_hz=now_khz * 1000 or None,
        most_clock_hz=most_khz * 1000 or None,
        limited_s={HEAT: held_ms / 1000}
        if any((folder / name).exists() for folder in folders for name in _HELD)
        else {},
    )


def _number(path: Path) -> int:
    """0 where there is no such file, or no number in it."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
