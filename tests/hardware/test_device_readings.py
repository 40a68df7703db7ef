"""Clocks, what holds them down, and memory traffic: out of the kernel's files and out of NVML's answers, which are
injected here. No device was at hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.chassis.metrics import Metrics
from headrace.executor.device_meters import watch_device
from headrace.executor.hardware.cpu_clock import read_cpu_clock
from headrace.executor.hardware.nvml_device import NvmlDevice
from headrace.executor.hardware.reading import HEAT, POWER, DeviceReading
from headrace.executor.hardware.readings import device_reading


def a_processor(system: Path, **cores: dict[str, str]) -> Path:
    for core, files in cores.items():
        for name, text in files.items():
            path = system / core / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return system


def test_the_fastest_core_and_the_longest_throttle_count(tmp_path: Path) -> None:
    clock, throttle = "cpufreq/scaling_cur_freq", "thermal_throttle/core_throttle_total_time_ms"
    most = {"cpufreq/cpuinfo_max_freq": "3500000\n"}
    system = a_processor(
        tmp_path,
        cpu0={clock: "1200000\n", throttle: "40\n", **most},
        cpu1={clock: "1500000\n", throttle: "900\n", **most},
        cpu2={clock: "3500000\n", throttle: "7000\n", **most},  # not ours
    )
    assert read_cpu_clock([0, 1], system) == DeviceReading(1.5e9, 3.5e9, {HEAT: 0.9})


@pytest.mark.parametrize("files", [{}, {"cpufreq/scaling_cur_freq": "unknown\n"}])
def test_a_machine_that_tells_nothing_has_no_reading(tmp_path: Path, files: dict[str, str]) -> None:
    assert read_cpu_clock([0], a_processor(tmp_path, cpu0=files)) == DeviceReading()


class NotSupported(Exception):
    """As NVML's."""


class Nvml:
    """Answers as pynvml does for one device; `lacks` names functions that the device does not support."""

    NVMLError = NotSupported
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_DRAM_BW_UTIL, NVML_SUCCESS = 1, 10, 0

    def __init__(self, *lacks: str, bandwidth_percent: float = 50.0) -> None:
        self.lacks = lacks
        self.bandwidth_percent = bandwidth_percent
        self.num_samples = 0
        self.is_shut = False

    def __getattribute__(self, name: str) -> Any:
        if name != "lacks" and name in self.lacks:
            raise NotSupported(name)
        return object.__getattribute__(self, name)

    def nvmlDeviceGetClockInfo(self, handle: object, which: int) -> int:
        return 1200

    def nvmlDeviceGetMaxClockInfo(self, handle: object, which: int) -> int:
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[which]

    def nvmlDeviceGetMemoryBusWidth(self, handle: object) -> int:
        return 6144

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> Any:
        return SimpleNamespace(gpu=90, memory=60)

    def nvmlDeviceGetViolationStatus(self, handle: object, policy: int) -> Any:
        return SimpleNamespace(violationTime={1: 2_500_000_000, 0: 0}[policy])

    def nvmlGpmQueryDeviceSupport(self, handle: object) -> Any:
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> object:
        self.num_samples += 1
        return object()

    def nvmlGpmSampleFree(self, sample: object) -> int:
        self.num_samples -= 1
        return 0

    def nvmlGpmSampleGet(self, handle: object, sample: object) -> object:
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, value=0.0, nvmlReturn=0)])

    def nvmlGpmMetricsGet(self, wanted: Any) -> Any:
        assert wanted.metrics[0].metricId == self.NVML_GPM_METRIC_DRAM_BW_UTIL
        wanted.metrics[0].value = self.bandwidth_percent
        return wanted

    def nvmlShutdown(self) -> None:
        self.is_shut = True


PEAK = 2 * 3201e6 * 6144 / 8  # of an H200, as its data sheet has it: 4.9 TB/s


def test_nvml_measures_traffic_between_two_readings() -> None:
    nvml, times = Nvml(), iter([10.0, 12.0, 13.0])
    device = NvmlDevice(nvml, object(), lambda: next(times))
    first, second = device.read(), device.read()
    nvml.bandwidth_percent = 100.0
    third = device.read()
    assert first == DeviceReading(1.2e9, 1.98e9, {HEAT: 2.5, POWER: 0.0}, 0.6, 0.0, PEAK)
    assert second.memory_moved_bytes == pytest.approx(PEAK)  # two seconds at half of it
    assert third.memory_moved_bytes == pytest.approx(2 * PEAK)
    assert nvml.num_samples == 1
    device.close()
    assert (nvml.num_samples, nvml.is_shut) == (0, True)


@pytest.mark.parametrize(
    ("lacks", "missing"),
    [
        ("nvmlGpmQueryDeviceSupport", {"memory_moved_bytes": None}),
        ("nvmlDeviceGetMemoryBusWidth", {"memory_moved_bytes": None, "memory_peak": None}),
        ("nvmlDeviceGetViolationStatus", {"limited_s": {}}),
        ("nvmlDeviceGetUtilizationRates", {"memory_busy": None}),
        ("nvmlDeviceGetClockInfo", {"clock_hz": None}),
    ],
)
def test_what_a_device_does_not_answer_is_left_out(lacks: str, missing: dict[str, object]) -> None:
    whole = {
        "clock_hz": 1.2e9,
        "most_clock_hz": 1.98e9,
        "limited_s": {HEAT: 2.5, POWER: 0.0},
        "memory_busy": 0.6,
        "memory_moved_bytes": 0.0,
        "memory_peak": PEAK,
    }
    assert NvmlDevice(Nvml(lacks), object(), lambda: 1.0).read() == DeviceReading(**whole | missing)  # type: ignore[arg-type]


def test_readings_become_series_and_what_was_before_does_not_count() -> None:
    readings = [
        DeviceReading(1e9, 2e9, {HEAT: 5.0}, 0.5, 100.0, 1000.0),
        DeviceReading(1e9, 2e9, {HEAT: 5.0}, 0.5, 100.0, 1000.0),
        DeviceReading(1.5e9, 2e9, {HEAT: 7.0}, 0.25, 400.0, 1000.0),
    ]
    metrics = Metrics("executor")
    watch_device(metrics, lambda: readings.pop(0) if len(readings) > 1 else readings[0])
    _scraped(metrics)
    values = _scraped(metrics)
    assert values["headrace_device_clock_hertz", "now"] == 1.5e9
    assert values["headrace_clock_limited_seconds_total", HEAT] == 2.0
    assert values["headrace_memory_moved_bytes_total", ""] == 400.0
    assert values["headrace_memory_busy_ratio", ""] == 0.25


def _scraped(metrics: Metrics) -> dict[tuple[str, str], float]:
    metrics.refresh()
    return {
        (sample.name, sample.labels.get("kind", sample.labels.get("reason", ""))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def test_an_engine_on_the_processor_reads_the_processors_clock() -> None:
    with device_reading(object()) as read:
        assert read().memory_peak is None
