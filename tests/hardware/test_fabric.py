"""How GPUs and network cards are joined, out of recorded outputs; and the probe over files of a made-up machine."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.executor.hardware.fabric import (
    MODULES,
    NVIDIA_VERSION,
    RDMA_DEVICES,
    TOPOLOGY,
    TRANSPORTS,
    Fabric,
    Port,
    describe,
    detect_fabric,
)
from headrace.executor.hardware.fabric_probe import probe_fabric

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
TWO_H100 = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tNODE\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNODE\tPXB\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "NIC0\tPIX\tNODE\t X \tNODE\tSYS\t\t\t\t\n"
    "NIC1\tNODE\tPXB\tNODE\t X \tSYS\t\t\t\t\n"
    "NIC2\tSYS\tSYS\tSYS\tSYS\t X \t\t\t\t\n" + LEGEND + "\n"
    "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n  NIC2: mlx5_bond_0\n\n"
)
TWO_5090 = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\t0-63\t0\t\tN/A\n"
    "GPU1\tPHB\t X \t0-63\t0\t\tN/A\n" + LEGEND
)
OLD_V100 = (
    "\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity\n"
    "GPU0\t X \tNV1\tPIX\tSYS\t0-19,40-59\n"
    "GPU1\tNV1\t X \tPIX\tSYS\t0-19,40-59\n"
    "mlx5_0\tPIX\tPIX\t X \tSYS\t\n"
    "mlx5_1\tSYS\tSYS\tSYS\t X \t\n" + LEGEND
)
SPACES = """        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV12    SYS     48-63,176-191   3
GPU1    NV12     X      PXB     16-31,144-159   1
NIC0    SYS     PXB      X
"""
PORTS = (
    "mlx5_0\t1\tInfiniBand\t400 Gb/sec (4X NDR)\t4: ACTIVE\n"
    "mlx5_1\t1\tInfiniBand\t400 Gb/sec (4X NDR)\t1: DOWN\n"
    "mlx5_bond_0\t1\tEthernet\t25 Gb/sec (1X EDR)\t4: ACTIVE\n"
)
PEERMEM = "nvidia_peermem 16384 0 - Live 0x0000000000000000 (POE)\ngdrdrv 24576 0 - Live 0x0000000000000000 (OE)\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n"


def test_cards_near_a_gpu_that_are_active() -> None:
    fabric = detect_fabric({TOPOLOGY: TWO_H100, RDMA_DEVICES: PORTS, MODULES: PEERMEM, TRANSPORTS: "nixl\nucxx"})
    assert fabric.links == (("X", "NV18"), ("NV18", "X"))
    assert fabric.ways[1] == {"mlx5_0": "NODE", "mlx5_1": "PXB", "mlx5_bond_0": "SYS"}
    assert fabric.ports[0] == Port("mlx5_0", 1, "InfiniBand", 400.0, True)
    assert [fabric.near(gpu) for gpu in range(2)] == [("mlx5_0",), ()]
    assert fabric.peer_memory == "nvidia_peermem"
    assert fabric.rdma
    assert fabric.gdrcopy
    assert not fabric.storage
    assert describe(fabric) == [
        "cuda 0: other GPUs by NV18; cards near it: mlx5_0",
        "cuda 1: other GPUs by NV18",
        "mlx5_0 port 1: InfiniBand, 400 Gbit/s, active",
        "mlx5_1 port 1: InfiniBand, 400 Gbit/s, not active",
        "mlx5_bond_0 port 1: Ethernet, 25 Gbit/s, active",
        "GPUDirect RDMA: through nvidia_peermem",
        "GDRCopy: its module is loaded",
        "transfer packages: nixl, ucxx",
    ]


def test_no_card_and_no_module() -> None:
    fabric = detect_fabric({TOPOLOGY: TWO_5090})
    assert fabric.links == (("X", "PHB"), ("PHB", "X"))
    assert not fabric.rdma
    assert describe(fabric) == [
        "cuda 0: other GPUs by PHB",
        "cuda 1: other GPUs by PHB",
        "GPUDirect RDMA: no, no module lets cards read a GPU's memory",
        "transfer packages: none",
    ]


def test_the_open_module_does_it_by_dma_buf_but_wants_a_card_near() -> None:
    assert detect_fabric({TOPOLOGY: TWO_H100, NVIDIA_VERSION: OPEN}).rdma
    far = detect_fabric({TOPOLOGY: TWO_5090, NVIDIA_VERSION: OPEN})
    assert far.peer_memory == "dma-buf"
    assert not far.rdma
    assert "GPUDirect RDMA: no, no active card is near" in describe(far)


def test_older_tools_name_the_cards_themselves_and_tabs_may_be_lost() -> None:
    assert detect_fabric({TOPOLOGY: OLD_V100}).near(0) == ("mlx5_0",)
    assert detect_fabric({TOPOLOGY: SPACES}).ways == ({"NIC0": "SYS"}, {"NIC0": "PXB"})


def test_a_machine_without_any_of_it_says_nothing() -> None:
    assert detect_fabric({}) == Fabric()
    assert describe(Fabric()) == []


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({TOPOLOGY: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."}, "has failed"),
        ({TOPOLOGY: TWO_H100.replace("GPU1\tNV18", "GPX1\tNV18")}, "1 rows for 2 GPUs"),
        ({TOPOLOGY: "\tGPU0\tGPU1\nGPU0\t X \nGPU1\tNV1\t X \n"}, "2 rows for 2 GPUs and 0 cards"),
        ({RDMA_DEVICES: "mlx5_0 1 InfiniBand"}, "not as expected"),
    ],
)
def test_what_cannot_be_read_is_a_fault(outputs: dict[str, str], said: str) -> None:
    assert said in detect_fabric(outputs).fault


def test_the_probe_reads_the_systems_files(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in (("link_layer", "InfiniBand\n"), ("rate", "200 Gb/sec (4X HDR)\n"), ("state", "4: ACTIVE\n")):
        (port / name).write_text(text)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text(PEERMEM)
    outputs = probe_fabric(tmp_path)
    assert outputs[RDMA_DEVICES] == "mlx5_0\t1\tInfiniBand\t200 Gb/sec (4X HDR)\t4: ACTIVE"
    assert NVIDIA_VERSION not in outputs
    fabric = detect_fabric(outputs)
    assert fabric.ports == (Port("mlx5_0", 1, "InfiniBand", 200.0, True),)
    assert fabric.gdrcopy
    assert RDMA_DEVICES not in probe_fabric(tmp_path / "nothing")


def test_headrace_hardware_tells(tmp_path: Path) -> None:
    for name, text in {TOPOLOGY: TWO_H100, RDMA_DEVICES: PORTS, MODULES: PEERMEM}.items():
        (tmp_path / name).write_text(text)
    shown = CliRunner().invoke(app, ["hardware", "--from", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "GPUDirect RDMA: through nvidia_peermem" in shown.output
    as_json = CliRunner().invoke(app, ["hardware", "--from", str(tmp_path), "--json"])
    fabric = json.loads(as_json.output)["fabric"]
    assert fabric["rdma"] is True
    assert fabric["ways"][0]["mlx5_0"] == "PIX"
