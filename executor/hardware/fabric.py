"""How GPUs reach each other and network cards: NVLink, the way over PCIe, and whether cards can read a GPU's memory by
themselves (GPUDirect RDMA). Out of `nvidia-smi topo -m` and the system's files. Pure.

A card that sits with a GPU behind one PCIe switch (PIX, PXB) reaches its memory at the card's speed; over a host bridge
(PHB) it is slower; beyond that (NODE, SYS) the way through the host's memory is as good.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.executor.hardware.unreadable import Unreadable

TOPOLOGY, RDMA_DEVICES, MODULES, NVIDIA_VERSION, TRANSPORTS = FABRIC_FILES = (
    "nvidia-topo.txt",
    "rdma-devices.tsv",
    "modules",
    "nvidia-version",
    "transports",
)
"""Names of outputs: `nvidia-smi topo -m`; a line a port of /sys/class/infiniband (card, port, link layer, rate, state,
with tabs between); /proc/modules; /proc/driver/nvidia/version; installed Python packages for transfers, a line each."""
WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""From near to far."""
NEAR = ("PIX", "PXB")


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a network card that does RDMA. `rate_gbit_per_s` 0 where it says none."""

    card: str
    number: int
    link_layer: str
    rate_gbit_per_s: float
    active: bool


@dataclass(frozen=True, slots=True)
class Fabric:
    """`links` [GPU][GPU], as the tool names them (X, NV18, PIX, ...); `ways` to each card, by GPU; `peer_memory` is
    what lets cards read a GPU's memory (nvidia_peermem, dma-buf), or "". `storage`: GPUDirect Storage's module is
    loaded."""

    links: tuple[tuple[str, ...], ...] = ()
    ways: tuple[Mapping[str, str], ...] = ()
    ports: tuple[Port, ...] = ()
    peer_memory: str = ""
    gdrcopy: bool = False
    storage: bool = False
    transports: tuple[str, ...] = ()
    fault: str = ""

    def near(self, gpu: int) -> tuple[str, ...]:
        """The cards behind one PCIe switch with the GPU that have an active port, or that say nothing of ports."""
        known = {port.card for port in self.ports}
        active = {port.card for port in self.ports if port.active}
        return tuple(
            card for card, way in self.ways[gpu].items() if way in NEAR and (card in active or card not in known)
        )

    @property
    def rdma(self) -> bool:
        """Whether some GPU's memory can be read by a card near it."""
        return bool(self.peer_memory) and any(self.near(gpu) for gpu in range(len(self.ways)))


def detect_fabric(outputs: Mapping[str, str]) -> Fabric:
    """`outputs` are texts by file name; what is not there was not to be had. Never raises: what cannot be read is the
    `fault`."""
    modules = {line.split()[0] for line in outputs.get(MODULES, "").splitlines() if line.split()}
    peer_memory = ""
    if modules & {"nvidia_peermem", "nv_peer_mem"}:
        peer_memory = "nvidia_peermem"
    elif "Open Kernel Module" in outputs.get(NVIDIA_VERSION, ""):
        peer_memory = "dma-buf"
    links: tuple[tuple[str, ...], ...] = ()
    ways: tuple[Mapping[str, str], ...] = ()
    fault = ""
    try:
        links, ways = parse_topology(outputs.get(TOPOLOGY, ""))
        ports = parse_ports(outputs.get(RDMA_DEVICES, ""))
    except Unreadable as error:
        ports, fault = (), str(error)
    return Fabric(
        links,
        ways,
        ports,
        peer_memory,
        "gdrdrv" in modules,
        "nvidia_fs" in modules,
        tuple(outputs.get(TRANSPORTS, "").split()),
        fault,
    )


def parse_topology(text: str) -> tuple[tuple[tuple[str, ...], ...], tuple[dict[str, str], ...]]:
    """(links, ways) of a Fabric; both empty for an empty text. Raises Unreadable."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    if not text.strip():
        return (), ()
    header = next((line for line in lines if re.match(r"\s+GPU0\b", line)), None)
    if header is None:
        raise Unreadable(f"nvidia-smi topo: {' '.join(text.split())[:200]}")
    columns = [each for each in _cells(header) if not each.endswith(("Affinity", "ID"))]
    names = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)\s*$", "\n".join(lines), re.MULTILINE))
    rows: dict[str, list[str]] = {}
    for line in lines:
        cells = _cells(line)
        if cells and re.fullmatch(r"GPU\d+", cells[0]) and line is not header:
            rows[cells[0]] = cells[1:]
    gpus = [each for each in columns if each.startswith("GPU")]
    cards = [each for each in columns if not each.startswith("GPU")]
    if list(rows) != gpus or any(len(row) < len(columns) for row in rows.values()):
        raise Unreadable(f"nvidia-smi topo: {len(rows)} rows for {len(gpus)} GPUs and {len(cards)} cards")
    table = [dict(zip(columns, row, strict=False)) for row in rows.values()]
    links = tuple(tuple(row[gpu] for gpu in gpus) for row in table)
    return links, tuple({names.get(card, card): row[card] for card in cards} for row in table)


def parse_ports(text: str) -> tuple[Port, ...]:
    """Raises Unreadable."""
    ports = []
    for line in text.splitlines():
        try:
            card, number, layer, rate, state = (each.strip() for each in line.split("\t"))
            speed = re.match(r"[\d.]+", rate)
            ports.append(Port(card, int(number), layer, float(speed[0]) if speed else 0.0, "ACTIVE" in state))
        except ValueError as error:
            raise Unreadable(f"rdma devices: not as expected: {line!r}") from error
    return tuple(ports)


def describe(fabric: Fabric) -> list[str]:
    """Lines for a reader; none where there is nothing to say."""
    lines = []
    for gpu, links in enumerate(fabric.links):
        direct = {link for other, link in enumerate(links) if other != gpu}
        said = [f"cuda {gpu}: other GPUs by {', '.join(sorted(direct))}"] if direct else []
        if near := fabric.near(gpu):
            said.append(f"{'' if said else f'cuda {gpu}: '}cards near it: {', '.join(near)}")
        if said:
            lines.append("; ".join(said))
    for port in fabric.ports:
        state = "active" if port.active else "not active"
        lines.append(f"{port.card} port {port.number}: {port.link_layer}, {port.rate_gbit_per_s:g} Gbit/s, {state}")
    if fabric.links:
        if fabric.rdma:
            lines.append(f"GPUDirect RDMA: through {fabric.peer_memory}")
        else:
            why = "no module lets cards read a GPU's memory" if not fabric.peer_memory else "no active card is near"
            lines.append(f"GPUDirect RDMA: no, {why}")
        extras = {"GDRCopy": fabric.gdrcopy, "GPUDirect Storage": fabric.storage}
        lines += [f"{name}: its module is loaded" for name, loaded in extras.items() if loaded]
        lines.append(f"transfer packages: {', '.join(fabric.transports) or 'none'}")
    return lines


def _cells(line: str) -> list[str]:
    """Tabs stand between columns; where they have been lost in a copy, two spaces or more do."""
    parts = line.split("\t") if "\t" in line else re.split(r"\s{2,}", line)
    return [part.strip() for part in parts if part.strip()]
