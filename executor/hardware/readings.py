"""Which readings an engine's device has: NVML's for one that says its device, the processor's for the others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from headrace.executor.engines.protocol import NvidiaEngine
from headrace.executor.hardware.cpu_clock import read_cpu_clock
from headrace.executor.hardware.nvml_device import open_nvml
from headrace.executor.hardware.reading import DeviceReading, Read


@contextmanager
def device_reading(engine: object) -> Iterator[Read]:
    """Reads until the block ends. Never raises: what cannot be read is not there."""
    if not isinstance(engine, NvidiaEngine):
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        yield partial(read_cpu_clock, sorted(allowed))
        return
    device = open_nvml(engine.device_uuid)
    if device is None:
        yield DeviceReading
        return
    try:
        yield device.read
    finally:
        device.close()
