"""How many tokens the next step may have, so that streams under way keep the time between their tokens. Pure."""

from collections.abc import Iterable, Mapping

from headrace.core.step_model import StepModel
from headrace.executor.sequence import Sequence

LEAST_SHARE = 8
"""Prompts get at least one part in so many of a step's tokens, however slow the step then is: they must get through."""
_KNOWN_STEPS = 64


def step_budget(steps: StepModel, sequences: Iterable[Sequence], targets: Mapping[int, float], step_tokens: int) -> int:
    """Tokens of the next step, `step_tokens` at most.

    `targets` are seconds between tokens by priority number; the shortest among the streams that decode rules. Those of
    no target, and steps of which too little is known yet, take the whole.
    """
    num_decodes, target_s = 0, float("inf")
    for sequence in sequences:
        if not sequence.prefilling:
            num_decodes += 1
            target_s = min(target_s, targets.get(sequence.job.priority, float("inf")))
    base_s, decode_s, prefill_s = steps.coefficients
    if target_s == float("inf") or prefill_s <= 0 or steps.num_samples < _KNOWN_STEPS:
        return step_tokens
    room = int((target_s - base_s - decode_s * num_decodes) / prefill_s)
    return min(step_tokens, num_decodes + max(room, step_tokens // LEAST_SHARE))
