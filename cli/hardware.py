"""`headrace hardware`: what this machine has, what is chosen for it, and why."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.chassis.config import load_settings
from headrace.executor.backends.presence import describe as describe_backends
from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.device import Device, Machine
from headrace.executor.hardware.fabric import describe, detect_fabric
from headrace.executor.hardware.fabric_probe import probe_fabric
from headrace.executor.hardware.probe import probe, record, recorded
from headrace.executor.hardware.profile import profile_path, read_all
from headrace.executor.hardware.report import Chosen, report
from headrace.executor.transfers.trial import run_trial


def hardware(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="Of a recorded machine, not of this one.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--record", metavar="FOLDER", help="Also write what the tools said, one file each.")
    ] = None,
    transfers: Annotated[
        bool, typer.Option("--transfers", help="Only move memory between two processes by NIXL, and say how fast.")
    ] = False,
) -> None:
    """Print the devices of this machine, the shapes chosen for them, and why."""
    if transfers:
        trial = run_trial()
        said = "as it was" if trial.right else "DAMAGED"
        typer.echo(f"nixl: {trial.size_bytes >> 20} MiB came {said}, at {trial.bytes_per_s / 1e9:.1f} GB/s")
        return
    outputs = recorded(source) if source else probe() | probe_fabric()
    if target is not None:
        record(outputs, target)
    machine, fabric = detect(outputs), detect_fabric(outputs)
    chosen = report(machine)
    path = profile_path(load_settings().models.home, machine.cpu.architecture(machine.cpu.num_threads))
    profiles = read_all(path) if source is None else {}
    if as_json:
        found = {"num_threads": machine.cpu.num_threads, "num_cores": machine.cpu.num_cores, "limit": machine.cpu.limit}
        tuned = {name: asdict(each) for name, each in profiles.items()}
        devices = [each.as_json() | {"backends": dict(describe_backends(each.device))} for each in chosen]
        whole = {"cpu": found, "devices": devices, "measured": tuned}
        whole["fabric"] = asdict(fabric) | {"rdma": fabric.rdma}
        print(json.dumps(whole | {"faults": list(machine.faults)}, indent=1))
        return
    console = Console(highlight=False, markup=False)
    for each in chosen:
        console.print(_title(each.device, machine))
        console.print(_table(each))
    for name, measured in profiles.items():
        console.print(
            f"measured for {name}: {measured.num_slots} slots, steps of {measured.step_tokens} tokens ({measured.why})"
        )
    for line in describe(fabric):
        console.print(line)
    for fault in (*machine.faults, *filter(None, [fabric.fault])):
        console.print(f"not read: {fault}")


def _title(device: Device, machine: Machine) -> str:
    memory = f", {device.memory_bytes / 2**30:.0f} GiB" if device.memory_bytes else ""
    parts = [f"{device.kind} {device.index}: {device.name}, {device.architecture}{memory}"]
    if device.driver:
        parts.append(f"driver {device.driver}")
    if device is machine.cpu.device:
        cpu = machine.cpu
        parts.append(f"{cpu.num_threads} threads, {cpu.num_cores} cores")
        if cpu.limit:
            parts.append(cpu.limit)
    if "mig" in device.features:
        parts.append("MIG is on: the shape is that of the whole device")
    return "; ".join(parts)


def _table(chosen: Chosen) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    if chosen.found != "its row of the table":
        table.add_row("shape", "", chosen.found)
    rows = {
        "rows of a padded batch": chosen.rows,
        "slots": chosen.slots,
        "alignment, tokens": chosen.align_tokens,
        "tokens of a step": chosen.step_tokens,
        "precision": chosen.precision,
    }
    for name, choice in rows.items():
        table.add_row(name, str(choice.value), choice.why)
    for name, said in describe_backends(chosen.device):
        table.add_row("runs on", name, said)
    if chosen.shape.note:
        table.add_row("note", "", chosen.shape.note)
    return table
