"""AWS Neuron devices, out of `neuron-ls --json-output`.

It names no generation. Newer releases name the instance; else cores and memory of a device tell it.
"""

import json
from typing import Any

from headrace.executor.hardware.device import Device, DeviceKind
from headrace.executor.hardware.unreadable import Unreadable

_BY_INSTANCE = {
    "inf1": ("Inferentia", "neuroncore-v1"),
    "inf2": ("Inferentia2", "neuroncore-v2"),
    "trn1": ("Trainium", "neuroncore-v2"),
    "trn2": ("Trainium2", "neuroncore-v3"),
}
_BY_SIZE = {
    (4, 8): ("Inferentia", "neuroncore-v1"),
    (2, 32): ("Trainium or Inferentia2", "neuroncore-v2"),
    (4, 96): ("Trainium2", "neuroncore-v3"),  # logical cores of two physical ones each
    (8, 96): ("Trainium2", "neuroncore-v3"),
}
"""(cores, GiB) of a device."""


def parse_neuron_ls(text: str) -> list[Device]:
    """A list of devices, or an object with `neuron_devices`. Raises Unreadable."""
    try:
        found = json.loads(text)
        instance = found.get("instance_type", "") if isinstance(found, dict) else ""
        devices = found["neuron_devices"] if isinstance(found, dict) else found
        return [_device(each, str(each.get("instance_type") or instance)) for each in devices]
    except Unreadable:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        words = " ".join(text.split())[:120] or "no output"
        raise Unreadable(f"neuron-ls: {words}") from error


def _device(each: dict[str, Any], instance: str) -> Device:
    num_cores, memory_bytes = int(each["nc_count"]), int(each["memory_size"])
    known = _BY_INSTANCE.get(instance[:4]) or _BY_SIZE.get((num_cores, round(memory_bytes / 2**30)))
    if known is None:
        raise Unreadable(f"neuron-ls: a device of {num_cores} cores and {memory_bytes} bytes is not known")
    processes = each.get("neuron_processes") or [{}]
    runtime = str(processes[0].get("neuron_runtime_version", ""))
    return Device(DeviceKind.NEURON, int(each["neuron_device"]), known[0], known[1], memory_bytes, runtime)
