"""What an executor is given where its settings leave it open, and why. Pure.

What was said goes before what was measured (a profile of `headrace tune`), and that before the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.executor.hardware.device import Device, DeviceKind
from headrace.executor.hardware.profile import Measured
from headrace.executor.hardware.shapes import Shape

LEAST_PREFILL_TOKENS = 2
"""Of a step, beside a decode in every slot: fewer would never take a prompt in."""
_USABLE_MEMORY = 0.9  # the rest is the runtime's own


@dataclass(frozen=True, slots=True)
class Choice:
    """A value, and where it comes from in a few words."""

    value: int | str
    why: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model takes of a device's memory: `weight_bytes` once, `row_bytes` for each row of a batch."""

    weight_bytes: int = 0
    row_bytes: int = 0


def choose_rows(shape: Shape, device: Device, needs: Needs = Needs()) -> Choice:
    """Rows of a padded batch: between the row's least and most by the device's memory, and no more than fit; 0 where
    not one does."""
    least, most = shape.rows
    if device.kind is DeviceKind.CPU or shape.memory_gib is None or not device.memory_bytes:
        rows, why = most, f"{shape.architecture}: {_range(shape.rows)} rows"
    else:
        low, high = shape.memory_gib
        share = (device.memory_bytes / 2**30 - low) / (high - low)
        # memory is sold in round numbers and told in somewhat less
        rows = least + int((most - least) * min(1.0, max(0.0, share + 0.05))) // 2 * 2
        why = (
            f"{shape.architecture}: {_range(shape.rows)} rows with {low} to {high} GiB, "
            f"this one has {device.memory_bytes / 2**30:.0f}"
        )
    if needs.row_bytes and device.memory_bytes:
        room = int(device.memory_bytes * _USABLE_MEMORY) - needs.weight_bytes
        fitting = max(0, room // needs.row_bytes)
        if fitting < rows:
            return Choice(fitting, f"{fitting} rows of {needs.row_bytes} bytes fit beside the weights")
    return Choice(rows, why)


def choose_slots(said: int, measured: Measured | None, shape: Shape, rows: Choice, step_tokens: int) -> Choice:
    """Sequences that decode at once. `said` 0 is open, and so is `step_tokens`; a step's tokens that were said leave
    room for no more slots than that."""
    if said:
        return Choice(said, "executor.num_slots says so")
    if measured is not None:
        choice = Choice(measured.num_slots, measured.why)
    elif shape.slots:
        choice = Choice(shape.slots, f"{shape.architecture}: {shape.source}")
    else:
        choice = rows
    most = step_tokens - LEAST_PREFILL_TOKENS
    if step_tokens and int(choice.value) > most:
        return Choice(max(1, most), f"as many as executor.step_tokens {step_tokens} leaves room for")
    return choice


def choose_step_tokens(said: int, measured: Measured | None, shape: Shape, num_slots: int) -> Choice:
    """Most new tokens of a step, with room for prompts beside a decode in every slot."""
    if said:
        return Choice(said, "executor.step_tokens says so")
    if measured is not None:
        choice = Choice(measured.step_tokens, measured.why)
    else:
        choice = Choice(shape.step_tokens, f"{shape.architecture}: {shape.source_tokens}")
    if int(choice.value) < 2 * num_slots:
        return Choice(2 * num_slots, f"twice the {num_slots} slots, so that prompts come in beside decodes")
    return choice


def choose_precision(shape: Shape, available: Sequence[str] = ()) -> Choice:
    """What the architecture is best at, of what the model is there in; '' where none of that runs here."""
    if not available or shape.precision in available:
        return Choice(shape.precision, f"{shape.architecture}: {shape.compute}")
    for name in ("bf16", "fp16", "tf32", "fp32", "int8"):
        if name in available and name in shape.precisions:
            return Choice(name, f"{shape.architecture} is best at {shape.precision}, the model is there in {name}")
    return Choice("", f"{shape.architecture} computes in {', '.join(shape.precisions)}")


def _range(rows: tuple[int, int]) -> str:
    return str(rows[0]) if rows[0] == rows[1] else f"{rows[0]} to {rows[1]}"
