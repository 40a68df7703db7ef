"""Which ways there are to run a model on a device, and what each wants installed. Pure data and rules.

Where a package comes from its maker only, the text says where to look; nothing here downloads anything.
"""

from dataclasses import dataclass

from headrace.executor.hardware.device import Device, DeviceKind


@dataclass(frozen=True, slots=True)
class Backend:
    """`name` as settings and reports have it; `modules` are what must be importable, `how` is how to get them.

    `static_shapes`: every shape is compiled by itself, so steps are padded to a ladder of buckets. `graphs`: how the
    host's work for each operation is saved.
    """

    name: str
    kind: DeviceKind
    modules: tuple[str, ...]
    how: str
    static_shapes: bool = False
    graphs: str = ""


CUDA = Backend(
    "torch-cuda", DeviceKind.CUDA, ("torch", "transformers"), "install headrace[executor-torch]", graphs="CUDA graphs"
)
ROCM = Backend(
    "torch-rocm",
    DeviceKind.ROCM,
    ("torch", "transformers"),
    "install torch's build for ROCm from PyTorch's own index, then headrace[executor-torch]",
    graphs="HIP graphs",
)
MIGRAPHX = Backend(
    "onnx-migraphx",
    DeviceKind.ROCM,
    ("onnxruntime",),
    "install onnxruntime-migraphx, and MIGraphX of AMD's ROCm packages, instead of onnxruntime",
    static_shapes=True,
)
GAUDI = Backend(
    "torch-gaudi",
    DeviceKind.GAUDI,
    ("torch", "transformers", "habana_frameworks"),
    "use Intel's PyTorch image for Gaudi, or habana-torch-plugin with the torch build of the same release",
    static_shapes=True,
    graphs="HPU graphs",
)
NEURON = Backend(
    "torch-neuron",
    DeviceKind.NEURON,
    ("torch", "transformers", "torch_neuronx"),
    "install torch-neuronx and neuronx-cc from AWS's own index, or use the Neuron image of the machine's release",
    static_shapes=True,
    graphs="compiled ahead of time",
)
OPENVINO = Backend("openvino", DeviceKind.CPU, ("openvino",), "install headrace[executor-openvino]")
TORCH_CPU = Backend("torch-cpu", DeviceKind.CPU, ("torch", "transformers"), "install headrace[executor-torch]")

BACKENDS = (CUDA, ROCM, MIGRAPHX, GAUDI, NEURON, OPENVINO, TORCH_CPU)
"""The first of a kind is the one to take."""

_TOO_OLD = {
    "neuroncore-v1": "torch-neuronx compiles for NeuronCore v2 and later; for v1 there was torch-neuron, which is no "
    "longer maintained",
    "gaudi": "graphs of today's releases are made for Gaudi 2 and later",
}
"""Architectures that are found and not served."""


def backends_for(device: Device) -> tuple[Backend, ...]:
    """The best first; none where the device cannot be served."""
    if device.architecture in _TOO_OLD:
        return ()
    return tuple(each for each in BACKENDS if each.kind is device.kind)


def unserved_because(device: Device) -> str:
    """Why `backends_for` gives none, in one line."""
    return _TOO_OLD.get(device.architecture, f"nothing runs on {device.kind.value}")
