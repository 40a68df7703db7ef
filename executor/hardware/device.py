"""A device that models run on, and the machine that it is in."""

from dataclasses import dataclass
from enum import StrEnum


class DeviceKind(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    GAUDI = "gaudi"
    NEURON = "neuron"


@dataclass(frozen=True, slots=True)
class Device:
    """`architecture` is what code is made for: sm_80, gfx942, gaudi2, neuroncore-v2, or of a CPU its best instructions,
    such as x86-64-amx. `memory_bytes` is the device's own, 0 where its tool does not say. `features` are what else
    decides: a CPU's instructions, `mig` of a GPU in parts."""

    kind: DeviceKind
    index: int
    name: str
    architecture: str
    memory_bytes: int
    driver: str = ""
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor as this process may use it: `num_threads` by affinity and cgroup, `num_cores` of the machine."""

    device: Device
    num_threads: int
    num_cores: int
    num_processors: int
    limit: str = ""
    """Why fewer threads than processors, '' where all may be used."""
    model: str = ""
    """Family and model as the kernel numbers them: names are shared by generations, in virtual machines above all."""

    def architecture(self, num_threads: int) -> str:
        """What an executor's steps are timed by: equal on machines that are as fast."""
        model = f" ({self.model})" if self.model else ""
        return f"{self.device.name}{model}, {self.device.architecture}, {num_threads} threads"


@dataclass(frozen=True, slots=True)
class Machine:
    """`devices` are accelerators, in the order of their tools; `faults` say which tool could not be read, and why."""

    cpu: Cpu
    devices: tuple[Device, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def best(self) -> Device:
        """The first accelerator, else the processor."""
        return self.devices[0] if self.devices else self.cpu.device
