"""What tools print when something is wrong, and what their releases print differently."""

import json
from pathlib import Path

import pytest

from headrace.executor.hardware.amd import parse_amd_smi, parse_rocm_smi
from headrace.executor.hardware.cpu import count_cpus, parse_cpu
from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.gaudi import parse_hl_smi
from headrace.executor.hardware.neuron import parse_neuron_ls
from headrace.executor.hardware.nvidia import parse_nvidia_smi, parse_nvml
from headrace.executor.hardware.probe import recorded
from headrace.executor.hardware.unreadable import Unreadable

MACHINES = Path(__file__).parent / "machines"
SMI = "index, name, compute_cap, memory.total [MiB], driver_version, mig.mode.current\n"


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_nvidia_smi, "", "nvidia-smi: no output"),
        (parse_nvidia_smi, "No devices were found\n", "nvidia-smi: No devices were found"),
        (
            parse_nvidia_smi,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that\nit runs.\n",
            "nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate",
        ),
        (parse_nvidia_smi, 'Field "compute_cap" is not a valid field to query.\n', 'nvidia-smi: Field "compute_cap"'),
        (parse_nvidia_smi, SMI + "0, Tesla K80, [N/A], 11441 MiB, 470.82.01, [N/A]\n", "compute_cap of Tesla K80"),
        (parse_nvidia_smi, SMI + "first, Tesla T4, 7.5, 15360 MiB, 550, [N/A]\n", "nvidia-smi: index 'first'"),
        (parse_nvidia_smi, SMI + "0\n", "nvidia-smi: compute_cap of"),
        (parse_nvml, "NVML: Unknown Error", "nvml: not as expected"),
        (parse_nvml, '{"driver_version": "1", "devices": [{"name": "x"}]}', "nvml: not as expected"),
        (parse_amd_smi, "ERROR: User is missing the following required groups: render", "amd-smi: ERROR: User"),
        (parse_amd_smi, '[{"gpu": 0, "asic": {"market_name": "x", "target_graphics_version": "N/A"}}]', "amd-smi: not"),
        (parse_amd_smi, '{"other": []}', "amd-smi: not as expected"),
        (parse_rocm_smi, "ERROR:root:Driver not initialized (amdgpu not found in modules)", "rocm-smi: ERROR:root"),
        (parse_rocm_smi, '{"card0": {"Card Series": "x"}}', "rocm-smi: not as expected"),
        (parse_hl_smi, "hl-smi: command failed: no device", "hl-smi: hl-smi: command failed"),
        (parse_hl_smi, "index, name, memory.total [MiB]\n0, HL-999, 98304 MiB\n", "hl-smi: HL-999"),
        (parse_neuron_ls, "neuron-ls: No neuron device found", "neuron-ls: neuron-ls: No neuron device found"),
        (parse_neuron_ls, '[{"neuron_device": 0, "nc_count": 3, "memory_size": 1}]', "a device of 3 cores"),
    ],
)
def test_an_output_of_no_use_is_one_line(parse, text: str, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tool_that_fails_is_told_and_the_others_count() -> None:
    outputs = recorded(MACHINES / "zen-4") | {"nvidia-smi.csv": "No devices were found", "hl-smi.csv": ""}
    machine = detect(outputs)
    assert machine.faults == ("nvidia-smi: No devices were found", "hl-smi: no output")
    assert machine.best is machine.cpu.device


def test_nvidia_smi_stands_in_where_nvml_fails() -> None:
    machine = detect(recorded(MACHINES / "t4") | {"nvml.json": "NVML: Driver/library version mismatch"})
    assert [each.architecture for each in machine.devices] == ["sm_75"]
    assert machine.faults == ()


def test_nothing_at_all_is_a_processor_that_nobody_knows() -> None:
    machine = detect({})
    assert machine.cpu.num_threads == 1
    assert machine.best.name == "unknown processor"


def test_older_amd_smi_prints_a_list() -> None:
    whole = json.loads((MACHINES / "mi300x" / "amd-smi.json").read_text(encoding="utf-8"))
    assert parse_amd_smi(json.dumps(whole["gpu_data"])) == parse_amd_smi(json.dumps(whole))


def test_trainium_2_is_known_by_its_instance_or_its_size() -> None:
    device = {"neuron_device": 0, "nc_count": 4, "memory_size": 103079215104, "neuron_processes": []}
    for said in ({}, {"instance_type": "trn2.48xlarge"}):
        (found,) = parse_neuron_ls(json.dumps([device | said]))
        assert (found.name, found.architecture) == ("Trainium2", "neuroncore-v3")


def test_lists_of_processors() -> None:
    assert [count_cpus(each) for each in ("0", "0-3", "0-3,8,10-11", "")] == [1, 4, 7, 0]


@pytest.mark.parametrize(
    ("allowed", "quotas", "num_threads", "limit"),
    [
        ("0-3", "", 4, ""),
        ("1-2", "", 2, "affinity allows 2 of 4 processors"),
        ("0-3", "max 100000\n150000 100000", 1, "a cgroup allows 1.5 processors"),
        ("0-3", "50000 100000", 1, "a cgroup allows 0.5 processors"),
        ("0-3", "nonsense\n-1 100000\n0", 4, ""),
    ],
)
def test_threads_by_affinity_and_cgroups(allowed: str, quotas: str, num_threads: int, limit: str) -> None:
    cpuinfo = (MACHINES / "zen-4" / "cpuinfo").read_text(encoding="utf-8")
    cpu = parse_cpu(cpuinfo, "", allowed, quotas, "")
    assert (cpu.num_threads, cpu.limit) == (num_threads, limit)


def test_what_an_executor_says_of_its_machine_tells_machines_apart() -> None:
    said = {}
    for folder in MACHINES.iterdir():
        if folder.is_dir():
            cpu = detect(recorded(folder)).cpu
            said[folder.name] = cpu.architecture(cpu.num_threads)
    assert said["zen-5"] == "AMD Ryzen 9 9950X 16-Core Processor (family 26 model 68), x86-64-avx512-bf16, 2 threads"
    assert said["graviton-4"] == "Arm Neoverse V2, arm64-i8mm-bf16, 4 threads"
    alone = ("xeon-amx", "xeon-container", "zen-5", "zen-4", "zen-3", "graviton-4", "graviton-2")
    assert len({said[name] for name in alone}) == len(alone)
