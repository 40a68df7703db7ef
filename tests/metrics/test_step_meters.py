"""What steps come to in an executor's figures: tokens by kind, guesses beside decodes, lateness."""

import threading

import numpy as np
import pytest

from headrace.chassis.metrics import Metrics
from headrace.core.model import ModelInfo
from headrace.core.request import Sampling
from headrace.core.step_model import StepSample
from headrace.executor.engines.reference import Float32, Int64, ReferenceEngine
from headrace.executor.experts.counts import ExpertCounts
from headrace.executor.meters import DecoderMeters, watch_experts
from headrace.executor.sequence import Job
from headrace.executor.step_reading import StepReading
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))
PERIOD = 6
MAX_TOKENS = 60
BOUND_S = 120


class Repeating(ReferenceEngine):
    """Its next token is the one that stood `PERIOD` places before it, but for every fifth place."""

    def _logits(self, context: Int64) -> Float32:
        logits = super()._logits(context)
        if len(context) > PERIOD and len(context) % 5:
            logits[context[-PERIOD]] = 9
        return logits


def _figures(engine: ReferenceEngine, speculation: int) -> dict[str, float]:
    """Of one answer of MAX_TOKENS tokens to a prompt that repeats itself."""
    metrics, done = Metrics("executor"), threading.Event()
    meters = DecoderMeters(metrics, engine.spec, 0)

    def deliver(result: StepResult) -> None:
        if result.finished:
            done.set()

    def failed(error: BaseException) -> None:
        raise error

    worker = Worker(
        engine,
        (),
        num_slots=8,
        step_tokens=64,
        deliver=deliver,
        failed=failed,
        stepped=meters.stepped,
        speculation=speculation,
    )
    meters.watch(8, worker.status, lambda: 0)
    prompt = np.array([65, 66, 67, 68, 69, 71] * 3, np.uint32)
    with worker:
        worker.submit(Job(1, "r", prompt, Sampling(max_tokens=MAX_TOKENS, ignore_eos=True)))
        assert done.wait(BOUND_S)
    metrics.refresh()
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {
        ".".join((sample.name.removeprefix("headrace_"), *sample.labels.values())): sample.value for sample in samples
    }


def test_guesses_are_not_decodes_and_those_that_come_true_are_counted() -> None:
    figures = _figures(Repeating(INFO, 512), 4)
    accepted = figures["speculation_accepted_tokens_total"]
    assert 0 < accepted <= figures["speculation_proposed_tokens_total"]
    assert figures["step_tokens_total.guess"] == figures["speculation_proposed_tokens_total"]
    # the prompt's step makes the first token, each decode one more, each guess that comes true saves a decode
    assert figures["step_tokens_total.decode"] == MAX_TOKENS - 1 - accepted
    assert figures["step_tokens_total.prefill"] == 18
    assert figures["step_rows_sum"] == figures["step_tokens_total.decode"] + figures["step_tokens_total.guess"] + 1


def test_without_speculation_every_token_is_a_decode() -> None:
    figures = _figures(Repeating(INFO, 512), 0)
    assert figures["speculation_proposed_tokens_total"] == figures["step_tokens_total.guess"] == 0
    assert figures["step_tokens_total.decode"] == MAX_TOKENS - 1


def test_a_dummy_in_a_guess_place_is_padding() -> None:
    metrics = Metrics("executor")
    meters = DecoderMeters(metrics, ReferenceEngine(INFO, 512).spec, 0)
    meters.stepped(StepReading(StepSample(5, 0, 0.01), 3, num_guesses=2, num_dummies=2))
    kinds = ("decode", "guess", "padding", "prefill")
    counted = [metrics.registry.get_sample_value("headrace_step_tokens_total", {"kind": kind}) for kind in kinds]
    assert counted == [1, 2, 2, 0]


@pytest.mark.parametrize(
    ("predicted_s", "took_s", "late"), [(0.01, 0.2, 1), (0.01, 0.05, 0), (0.1, 0.3, 0), (None, 9.0, 0)]
)
def test_a_step_is_late_by_a_factor_and_by_some_time(predicted_s: float | None, took_s: float, late: int) -> None:
    metrics = Metrics("executor")
    meters = DecoderMeters(metrics, ReferenceEngine(INFO, 512).spec, 0)
    meters.stepped(StepReading(StepSample(1, 0, took_s), 1, predicted_s=predicted_s))
    assert metrics.registry.get_sample_value("headrace_late_steps_total") == late


def test_experts_on_demand_are_counted() -> None:
    metrics, counts = Metrics("executor"), [ExpertCounts(5, 2, 3, 1, 0.25, 300, 200)]
    watch_experts(metrics, lambda: counts[-1])
    metrics.refresh()
    counts.append(ExpertCounts(9, 2, 4, 1, 0.5, 400, 200))
    metrics.refresh()
    value = metrics.registry.get_sample_value
    found = {each: value("headrace_expert_requests_total", {"outcome": each}) for each in ("hit", "early", "miss")}
    assert found == {"hit": 9, "early": 2, "miss": 4}
    assert value("headrace_expert_copied_bytes_total", {"reason": "demand"}) == 400
    assert value("headrace_expert_copied_bytes_total", {"reason": "ahead"}) == 200
    assert value("headrace_expert_stall_seconds_total") == 0.5
    assert value("headrace_experts_wasted_total") == 1
