"""How a device is served, what has to be installed for it, and what its runtime is asked for."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from headrace.core.errors import ConfigError, EngineNotReady
from headrace.core.request import Precision
from headrace.executor.backends import catalogue, migraphx, torch_gaudi
from headrace.executor.backends.catalogue import BACKENDS, CUDA, GAUDI, MIGRAPHX, NEURON, OPENVINO, ROCM, TORCH_CPU
from headrace.executor.backends.presence import describe, is_installed, missing, require
from headrace.executor.backends.torch_device import TorchDevice, load_torch_device
from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.device import Device, DeviceKind
from headrace.executor.hardware.probe import recorded

MACHINES = Path(__file__).parents[1] / "hardware" / "machines"
EXPECTED = {
    "mi300x": ["torch-rocm", "onnx-migraphx"],
    "mi300x-rocm-smi": ["torch-rocm", "onnx-migraphx"],
    "gaudi2": ["torch-gaudi"],
    "inf2": ["torch-neuron"],
    "trn1": ["torch-neuron"],
    "h200": ["torch-cuda"],
    "v100": ["torch-cuda"],
    "zen-5": ["openvino", "torch-cpu"],
}


def everything(module: str) -> bool:
    return True


def nothing(module: str) -> bool:
    return False


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_machine_has_its_backends(name: str) -> None:
    device = detect(recorded(MACHINES / name)).best
    assert [each.name for each in catalogue.backends_for(device)] == EXPECTED[name]
    assert all(said == "its packages are installed" for _, said in describe(device, everything))
    for backend, said in describe(device, nothing):
        assert said.startswith("missing: ")
        assert next(each for each in BACKENDS if each.name == backend).how in said


def test_every_machine_has_one() -> None:
    for folder in sorted(path for path in MACHINES.iterdir() if path.is_dir()):
        assert catalogue.backends_for(detect(recorded(folder)).best), folder.name


@pytest.mark.parametrize(("kind", "architecture"), [(DeviceKind.NEURON, "neuroncore-v1"), (DeviceKind.GAUDI, "gaudi")])
def test_a_device_that_is_too_old_says_so(kind: DeviceKind, architecture: str) -> None:
    device = Device(kind, 0, "old", architecture, 2**34)
    assert catalogue.backends_for(device) == ()
    ((name, said),) = describe(device, everything)
    assert name == "none"
    assert said


def test_what_is_missing_is_named_with_the_way_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r"torch-gaudi wants habana_frameworks: use Intel's PyTorch image for Gaudi"):
        require(GAUDI, lambda module: module != "habana_frameworks")
    with pytest.raises(ConfigError, match=r"torch-neuron wants torch_neuronx: .*AWS's own index"):
        load_torch_device(NEURON, found=lambda module: module != "torch_neuronx")
    with pytest.raises(ConfigError, match=r"onnx-migraphx does not run on torch"):
        load_torch_device(MIGRAPHX)
    assert missing(TORCH_CPU) == ()
    assert not is_installed("habana_frameworks.torch")
    assert is_installed("openvino") == (not missing(OPENVINO))


def small_bert() -> Any:
    torch.manual_seed(3)
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
    return BertModel(config, add_pooling_layer=False)


IDS = torch.arange(12).reshape(2, 6)


def test_the_cpu_runs_a_model_in_its_precision() -> None:
    device = load_torch_device(TORCH_CPU)
    ready = device.ready(small_bert(), Precision.BF16, (IDS,))
    with torch.inference_mode():
        output = ready(IDS).last_hidden_state
        expected = small_bert().eval()(IDS).last_hidden_state
    device.end_step()
    device.synchronise()
    assert (output.dtype, output.shape) == (torch.bfloat16, (2, 6, 16))
    assert torch.allclose(output.float(), expected, atol=0.1)
    assert device.memory_bytes() == (0, 0)
    with pytest.raises(EngineNotReady, match="torch-cpu does not compute in int8") as caught:
        device.ready(small_bert(), Precision.INT8, (IDS,))
    assert caught.value.limit == "bf16, fp16, fp32"


def test_torch_built_for_another_device_is_told() -> None:
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    with pytest.raises(EngineNotReady, match=rf"torch-rocm: torch .* is built for {built_for}; install torch's build"):
        load_torch_device(ROCM)
    with pytest.raises(EngineNotReady, match="torch-cuda: no device 0, torch finds 0"):
        load_torch_device(CUDA)


def test_torch_for_rocm_finds_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 9))
    device = load_torch_device(ROCM, 1)
    assert (device.placement, device.memory_bytes()) == ("cuda:1", (5, 9))
    with pytest.raises(EngineNotReady, match=r"torch-cuda: .* is built for ROCm 7.0"):
        load_torch_device(CUDA)
    with pytest.raises(EngineNotReady, match="no device 2, torch finds 2"):
        load_torch_device(ROCM, 2)


class Runtime:
    """Stands for a maker's package: notes what is asked of it, in order, and runs modules on the CPU."""

    def __init__(self, fails: str = "") -> None:
        self.asked: list[Any] = []
        self.fails = fails

    def note(self, name: str, answer: Any = None) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.asked.append(name)
            if name == self.fails:
                raise RuntimeError("out of\nmemory")
            return answer(*arguments, **options) if callable(answer) else answer

        return call

    def module(self, name: str, **members: Any) -> ModuleType:
        module = ModuleType(name)
        for member, answer in members.items():
            setattr(module, member, self.note(member, answer))
        return module


class Placed:
    """A module whose `to` takes any device: there is none here."""

    def __init__(self, module: Any) -> None:
        self.module, self.sent = module, []  # type: ignore[var-annotated]

    def to(self, **where: Any) -> "Placed":
        self.sent.append(where)
        self.module.to(dtype=where["dtype"])
        return self

    def eval(self) -> "Placed":
        self.module.eval()
        return self

    def __call__(self, *arguments: Any) -> Any:
        return self.module(*arguments)


@pytest.fixture
def gaudi(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Runtime, TorchDevice]]]:
    monkeypatch.delenv(torch_gaudi.LAZY_MODE, raising=False)
    to = torch.Tensor.to
    there = lambda self, *where, **how: self if str(where[:1]).startswith("('hpu") else to(self, *where, **how)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "to", there)

    def load(fails: str = "", count: int = 8, index: int = 0) -> tuple[Runtime, TorchDevice]:
        runtime = Runtime(fails)
        hpu = runtime.module(
            "hpu",
            is_available=True,
            device_count=count,
            wrap_in_hpu_graph=lambda module: runtime.note("replay", module),
            synchronize=None,
            mem_get_info=(3, 7),
        )
        names = {
            "habana_frameworks": ModuleType("habana_frameworks"),
            "habana_frameworks.torch": ModuleType("torch"),
            "habana_frameworks.torch.core": runtime.module("core", mark_step=None),
            "habana_frameworks.torch.hpu": hpu,
        }
        for name, module in names.items():
            monkeypatch.setitem(sys.modules, name, module)
        return runtime, load_torch_device(GAUDI, index, everything)

    return load  # type: ignore[return-value]


def test_gaudi_captures_a_shape_before_it_serves(gaudi: Callable[..., tuple[Runtime, TorchDevice]]) -> None:
    runtime, device = gaudi()
    placed = Placed(small_bert())
    ready = device.ready(placed, Precision.BF16, (IDS,))
    assert placed.sent == [{"device": "hpu:0", "dtype": torch.bfloat16}]
    assert runtime.asked[2:] == ["wrap_in_hpu_graph", "replay", "mark_step", "synchronize"]
    assert ready(IDS).last_hidden_state.dtype == torch.bfloat16
    device.end_step()
    assert runtime.asked[-2:] == ["replay", "mark_step"]
    assert device.memory_bytes() == (3, 7)
    with pytest.raises(EngineNotReady, match="torch-gaudi does not compute in fp16"):
        device.ready(placed, Precision.FP16, (IDS,))


def test_gaudi_says_what_is_wrong(
    gaudi: Callable[..., tuple[Runtime, TorchDevice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineNotReady, match="no device 8, the runtime finds 8"):
        gaudi(index=8)
    _, device = gaudi(fails="replay")
    with pytest.raises(EngineNotReady, match="torch-gaudi cannot capture: out of memory"):
        device.ready(Placed(small_bert()), Precision.BF16, (IDS,))
    monkeypatch.setitem(sys.modules, "habana_frameworks.torch.core", None)
    with pytest.raises(EngineNotReady, match=r"torch-gaudi: .*habana_frameworks.torch.core.*; use Intel's"):
        load_torch_device(GAUDI, 0, everything)
    monkeypatch.setenv(torch_gaudi.LAZY_MODE, "0")
    with pytest.raises(EngineNotReady, match="PT_HPU_LAZY_MODE is '0'; HPU graphs want 1"):
        load_torch_device(GAUDI, 0, everything)


def test_neuron_compiles_for_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, given = Runtime(), []

    def trace(module: Any, examples: tuple[Any, ...], *, compiler_args: list[str]) -> Any:
        given.append((examples, compiler_args))
        return module

    neuronx = runtime.module("torch_neuronx", trace=trace, move_trace_to_device=lambda traced, core: given.append(core))
    monkeypatch.setitem(sys.modules, "torch_neuronx", neuronx)
    device = load_torch_device(NEURON, 1, everything)
    ready = device.ready(small_bert(), Precision.BF16, (IDS,))
    assert given == [((IDS,), ["--model-type=transformer", "--auto-cast=none"]), 1]
    assert runtime.asked == ["trace", "move_trace_to_device"]
    assert ready(IDS).last_hidden_state.dtype == torch.bfloat16
    runtime.fails = "trace"
    with pytest.raises(EngineNotReady, match="torch-neuron cannot compile: out of memory"):
        device.ready(small_bert(), Precision.BF16, (IDS,))
    with pytest.raises(EngineNotReady, match="no NeuronCore -1"):
        load_torch_device(NEURON, -1, everything)


def test_migraphx_gets_its_options(tmp_path: Path) -> None:
    ((name, options), (cpu, _)) = migraphx.providers(1, Precision.BF16, tmp_path, exhaustive_tune=True)
    assert (name, cpu) == ("MIGraphXExecutionProvider", "CPUExecutionProvider")
    assert options == {
        "device_id": "1",
        "migraphx_model_cache_dir": str(tmp_path),
        "migraphx_bf16_enable": "1",
        "migraphx_exhaustive_tune": "1",
    }
    (_, whole), _ = migraphx.providers(0, Precision.FP32, tmp_path)
    assert not [option for option in whole if option.endswith("_enable")]
    (_, eight), _ = migraphx.providers(0, Precision.INT8, tmp_path, calibration=tmp_path / "table")
    assert eight["migraphx_int8_calibration_table_name"] == str(tmp_path / "table")
    with pytest.raises(EngineNotReady, match="int8 wants a calibration table"):
        migraphx.providers(0, Precision.INT8, tmp_path)
    with pytest.raises(EngineNotReady, match="does not compute in any"):
        migraphx.providers(0, Precision.ANY, tmp_path)


def test_a_session_without_migraphx_is_refused() -> None:
    migraphx.require_available(["MIGraphXExecutionProvider", "CPUExecutionProvider"])
    migraphx.check_session(["MIGraphXExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(EngineNotReady, match="this onnxruntime has CPUExecutionProvider; install onnxruntime-migraphx"):
        migraphx.require_available(["CPUExecutionProvider"])
    with pytest.raises(EngineNotReady, match="the session has fallen back to CPUExecutionProvider"):
        migraphx.check_session(["CPUExecutionProvider"])
