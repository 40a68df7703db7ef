"""From tools' outputs to a machine. Pure: probe.py runs the tools, recordings stand in for them."""

from collections.abc import Callable, Iterable, Mapping

from headrace.executor.hardware.amd import parse_amd_smi, parse_rocm_smi
from headrace.executor.hardware.cpu import parse_cpu
from headrace.executor.hardware.device import Device, Machine
from headrace.executor.hardware.gaudi import parse_hl_smi
from headrace.executor.hardware.neuron import parse_neuron_ls
from headrace.executor.hardware.nvidia import parse_nvidia_smi, parse_nvml
from headrace.executor.hardware.unreadable import Unreadable

Parser = Callable[[str], list[Device]]

MAKERS: tuple[tuple[tuple[str, Parser], ...], ...] = (
    (("nvml.json", parse_nvml), ("nvidia-smi.csv", parse_nvidia_smi)),
    (("amd-smi.json", parse_amd_smi), ("rocm-smi.json", parse_rocm_smi)),
    (("hl-smi.csv", parse_hl_smi),),
    (("neuron-ls.json", parse_neuron_ls),),
)
"""Of each maker the outputs that tell its devices, by file name, the first that can be read counts."""
CPU_FILES = ("cpuinfo", "meminfo", "cpus_allowed", "cpu.max", "memory.max")
"""In the order of `parse_cpu`'s parameters."""


def detect(outputs: Mapping[str, str]) -> Machine:
    """`outputs` are texts by file name; what is not there was not to be had. Never raises: what cannot be read is
    among the faults."""
    devices: list[Device] = []
    faults: list[str] = []
    for tools in MAKERS:
        found, said = _first(tools, outputs)
        devices += found
        faults += said
    cpu = parse_cpu(*(outputs.get(name, "") for name in CPU_FILES))
    return Machine(cpu, tuple(devices), tuple(faults))


def _first(tools: Iterable[tuple[str, Parser]], outputs: Mapping[str, str]) -> tuple[list[Device], list[str]]:
    faults: list[str] = []
    for name, parse in tools:
        if name not in outputs:
            continue
        try:
            found = parse(outputs[name])
        except Unreadable as error:
            faults.append(str(error))
            continue
        if found:
            return found, []
    return [], faults
