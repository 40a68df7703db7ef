"""One NVIDIA device as NVML reads it while it works. Tried with recorded answers only: unproved on a device.

Memory traffic is NVML's share of peak bandwidth between two readings (GPM, from Hopper on), times the peak that the
bus's width and the memory's highest clock give: two transfers a clock, as all of these memories have.
"""

import ctypes
import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.executor.hardware.reading import HEAT, POWER, DeviceReading

log = logging.getLogger(__name__)

TRANSFERS_A_CLOCK = 2
_MEGA = 1_000_000
Given = TypeVar("Given")


def open_nvml(uuid: str) -> "NvmlDevice | None":
    """The device of this UUID; None, with a line in the log, without nvidia-ml-py, a driver or such a device."""
    try:
        import pynvml
    except ImportError:
        log.info("no clocks and no memory traffic of %s: pip install 'headrace[executor-nvidia]'", uuid)
        return None
    try:
        pynvml.nvmlInit()
        return NvmlDevice(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError as error:
        log.warning("no clocks and no memory traffic of %s: NVML says %s", uuid, error)
        return None


class NvmlDevice:
    """`nvml` is the module pynvml or one that answers as it does; `handle` is its device. `close` ends NVML's use."""

    def __init__(self, nvml: Any, handle: object, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._moved = 0.0
        self._sample: tuple[float, Any] | None = None
        support = self._asked(lambda: nvml.nvmlGpmQueryDeviceSupport(handle))
        self._measures = support is not None and bool(support.isSupportedDevice)

    def read(self) -> DeviceReading:
        """What it does not answer is left out. Never raises."""
        nvml, handle = self._nvml, self._handle
        now_mhz = self._asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        most_mhz = self._asked(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
        use = self._asked(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        peak = self._peak()
        policies = {HEAT: nvml.NVML_PERF_POLICY_THERMAL, POWER: nvml.NVML_PERF_POLICY_POWER}
        held = {reason: self._held_s(policy) for reason, policy in policies.items()}
        return DeviceReading(
            clock_hz=None if now_mhz is None else now_mhz * _MEGA,
            most_clock_hz=None if most_mhz is None else most_mhz * _MEGA,
            limited_s={reason: held_s for reason, held_s in held.items() if held_s is not None},
            memory_busy=None if use is None else use.memory / 100,
            memory_moved_bytes=None if peak is None else self._moved_bytes(peak),
            memory_peak=peak,
        )

    def close(self) -> None:
        if self._sample is not None:
            _, sample = self._sample
            self._sample = None
            self._asked(lambda: self._nvml.nvmlGpmSampleFree(sample))
        self._asked(self._nvml.nvmlShutdown)

    def _held_s(self, policy: int) -> float | None:
        held = self._asked(lambda: self._nvml.nvmlDeviceGetViolationStatus(self._handle, policy))
        return None if held is None else held.violationTime / 1e9

    def _peak(self) -> float | None:
        nvml, handle = self._nvml, self._handle
        bits = self._asked(lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle))
        mhz = self._asked(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))
        return TRANSFERS_A_CLOCK * mhz * _MEGA * bits / 8 if bits and mhz else None

    def _moved_bytes(self, peak: float) -> float | None:
        """Up to now since the first reading; None where the device does not measure it."""
        nvml = self._nvml
        if not self._measures or (sample := self._asked(nvml.nvmlGpmSampleAlloc)) is None:
            return None
        now = self._clock()
        if self._asked(lambda: nvml.nvmlGpmSampleGet(self._handle, sample)) is None:
            self._asked(lambda: nvml.nvmlGpmSampleFree(sample))
            return self._moved
        before, self._sample = self._sample, (now, sample)
        if before is not None:
            since, earlier = before
            percent = self._share_between(earlier, sample)
            if percent is not None:
                self._moved += max(0.0, percent) / 100 * peak * (now - since)
            self._asked(lambda: nvml.nvmlGpmSampleFree(earlier))
        return self._moved

    def _share_between(self, earlier: Any, later: Any) -> float | None:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        wanted.sample1, wanted.sample2 = earlier, later
        wanted.metrics[0].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        answer = self._asked(lambda: nvml.nvmlGpmMetricsGet(wanted))
        if answer is None or answer.metrics[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        return float(answer.metrics[0].value)

    def _asked(self, ask: Callable[[], Given]) -> Given | None:
        """None where the device does not know it, or has no such function."""
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError, ctypes.ArgumentError):
            return None
