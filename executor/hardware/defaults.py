"""Fills in what an executor's settings leave open, from this machine: its processor, its profile and the table."""

import logging
from pathlib import Path

from headrace.chassis.config import EncoderSettings, ExecutorSettings
from headrace.executor.hardware.choice import choose_rows, choose_slots, choose_step_tokens
from headrace.executor.hardware.detect import detect
from headrace.executor.hardware.device import Machine
from headrace.executor.hardware.probe import cpu_outputs
from headrace.executor.hardware.profile import profile_path, read_measured
from headrace.executor.hardware.shapes import find_shape
from headrace.models.repository import ModelEntry

log = logging.getLogger(__name__)


PIECES_PER_S = 160
"""Sixty-four streams then send a piece each 0.35 s. On the processor that the engine runs on, a piece costs gateway and
client some 0.3 ms, and the engine's threads wait for each other meanwhile; `headrace bench saturate` shows it."""


def host() -> Machine:
    """The processor that today's engines run on; accelerators are not asked for."""
    return detect(cpu_outputs())


def filled_decoder(own: ExecutorSettings, entry: ModelEntry, home: Path, machine: Machine) -> ExecutorSettings:
    """The settings with slots and step tokens; `entry` is the model in the precision that is served.

    Raises ConfigError where the machine's profile is damaged.
    """
    cpu = machine.cpu
    path = profile_path(home, cpu.architecture(own.threads or cpu.num_threads))
    measured = read_measured(path, entry.info.name, entry.precision.name.lower(), entry.info.digest)
    shape, _ = find_shape(cpu.device.architecture)
    slots = choose_slots(own.num_slots, measured, shape, choose_rows(shape, cpu.device), own.step_tokens)
    step_tokens = choose_step_tokens(own.step_tokens, measured, shape, int(slots.value))
    log.info("%s slots (%s), steps of %s tokens (%s)", slots.value, slots.why, step_tokens.value, step_tokens.why)
    return own.model_copy(
        update={
            "num_slots": int(slots.value),
            "step_tokens": int(step_tokens.value),
            "pieces_per_s": own.pieces_per_s or PIECES_PER_S,
        }
    )


def filled_encoder(own: EncoderSettings, machine: Machine) -> EncoderSettings:
    """The settings with the rows of a forward."""
    if own.batch_rows:
        return own
    shape, _ = find_shape(machine.cpu.device.architecture)
    rows = choose_rows(shape, machine.cpu.device)
    log.info("%s rows a forward (%s)", rows.value, rows.why)
    return own.model_copy(update={"batch_rows": int(rows.value)})
