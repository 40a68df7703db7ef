"""What was found, what is chosen and why, as plain values for a table or JSON. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

from headrace.executor.hardware.choice import (
    Choice,
    choose_precision,
    choose_rows,
    choose_slots,
    choose_step_tokens,
)
from headrace.executor.hardware.device import Device, DeviceKind, Machine
from headrace.executor.hardware.profile import Measured
from headrace.executor.hardware.shapes import Shape, find_shape


@dataclass(frozen=True, slots=True)
class Chosen:
    """For one device: its row of the table, how that was found, and each value with its reason."""

    device: Device
    shape: Shape
    found: str
    rows: Choice
    slots: Choice
    align_tokens: Choice
    step_tokens: Choice
    precision: Choice

    def as_json(self) -> dict[str, Any]:
        device = asdict(self.device) | {"features": sorted(self.device.features)}
        names = ("rows", "slots", "align_tokens", "step_tokens", "precision")
        return {
            "device": device,
            "shape": self.found,
            "chosen": {name: asdict(getattr(self, name)) for name in names},
            "precisions": list(self.shape.precisions),
            "note": self.shape.note,
        }


def choose(device: Device, measured: Measured | None = None) -> Chosen:
    """`measured` is the machine's profile, for a processor."""
    shape, found = find_shape(device.architecture)
    rows = choose_rows(shape, device)
    slots = choose_slots(0, measured, shape, rows, 0)
    return Chosen(
        device,
        shape,
        found,
        rows,
        slots,
        Choice(shape.align_tokens, f"{shape.architecture}: {shape.source}"),
        choose_step_tokens(0, measured, shape, int(slots.value)),
        choose_precision(shape),
    )


def report(machine: Machine, measured: Measured | None = None) -> list[Chosen]:
    """Of each device, accelerators first, the processor last."""
    devices = (*machine.devices, machine.cpu.device)
    return [choose(each, measured if each.kind is DeviceKind.CPU else None) for each in devices]
