"""What is learned from steps and answers, and what is not said before it is known."""

import math
import random

import pytest

from headrace.core.request import Precision, QosClass
from headrace.core.step_model import PRIOR, StepModel, StepSample
from headrace.scheduler.policy.events import Request
from headrace.scheduler.policy.prediction import AnswerLengths, Predictor, finish_s

KIND = ("m", Precision.INT8, "")

NONSENSE = [
    StepSample(-1, 0, 0.01),
    StepSample(1, -1, 0.01),
    StepSample(1, 1, -0.01),
    StepSample(1, 1, 0.0),
    StepSample(1, 1, math.nan),
    StepSample(1, 1, math.inf),
    StepSample(1, 1, 1e9),
    StepSample(10**400, 1, 0.01),
    StepSample(1, 10**400, 0.01),
    StepSample(10**200, 10**200, 0.01),
]


def steps(true: tuple[float, float, float], num: int, *, noise: float = 0.0, seed: int = 1) -> list[StepSample]:
    draw = random.Random(seed)
    samples = []
    for _ in range(num):
        decodes, prefill = draw.randrange(64), draw.choice([0, 0, 128, 512, draw.randrange(640)])
        seconds = true[0] + true[1] * decodes + true[2] * prefill
        samples.append(StepSample(decodes, prefill, seconds * (1 + draw.uniform(-noise, noise))))
    return samples


def request(*, prompt: int = 100, most: int = 200, n: int = 1, qos: QosClass = QosClass.NORMAL) -> Request:
    return Request(1, "r", "g", "m", prompt, most, qos, n=n)


@pytest.mark.parametrize("true", [(0.03, 0.001, 0.0005), (0.002, 0.00005, 0.00001), (0.1, 0.02, 0.004)])
def test_the_step_model_recovers_what_steps_really_take(true: tuple[float, float, float]) -> None:
    model = StepModel()
    model.observe(steps(true, 2000, noise=0.1))
    for decodes, prefill in [(1, 0), (32, 0), (64, 512), (0, 640)]:
        wanted = true[0] + true[1] * decodes + true[2] * prefill
        assert model.seconds(decodes, prefill) == pytest.approx(wanted, rel=0.1)


def test_the_step_model_starts_from_its_prior_and_leaves_it_only_by_evidence() -> None:
    model = StepModel()
    assert model.coefficients == PRIOR
    model.observe(steps((1.0, 0.0, 0.0), 5))
    assert model.coefficients == PRIOR


@pytest.mark.parametrize("sample", NONSENSE, ids=lambda sample: f"{sample!s:.60}")
def test_the_step_model_passes_over_nonsense(sample: StepSample) -> None:
    model, plain = StepModel(), StepModel()
    good = steps((0.03, 0.001, 0.0005), 320)
    plain.observe(good)
    for each in good:
        model.observe([sample, each])
    assert model.coefficients == plain.coefficients
    assert model.num_samples == plain.num_samples == 320


def test_the_step_model_forgets() -> None:
    model = StepModel()
    model.observe(steps((0.1, 0.01, 0.001), 1000))
    model.observe(steps((0.01, 0.001, 0.0001), 4000, seed=2))
    assert model.seconds(10, 100) == pytest.approx(0.03, rel=0.1)


def test_steps_all_alike_do_not_lead_astray() -> None:
    """Only decodes of one: base and decode cannot be told apart, their sum can."""
    model = StepModel()
    model.observe([StepSample(1, 0, 0.05)] * 500)
    assert model.seconds(1, 0) == pytest.approx(0.05, rel=0.1)
    assert all(each >= 0 for each in model.coefficients)


def test_answer_lengths_approach_their_mean_and_forget() -> None:
    lengths = AnswerLengths()
    assert lengths.mean == 128.0
    for _ in range(300):
        lengths.observe(40)
    assert lengths.mean == pytest.approx(40, rel=0.05)
    for _ in range(600):
        lengths.observe(400)
    assert lengths.mean == pytest.approx(400, rel=0.05)


def test_the_quantile_is_a_lower_bound_that_is_not_far() -> None:
    lengths, draw = AnswerLengths(), random.Random(3)
    seen = [draw.randint(10, 1000) for _ in range(2000)]
    for tokens in seen:
        lengths.observe(tokens)
    late = sorted(seen[-300:])
    for share in (0.1, 0.5, 0.9):
        exact = late[int(share * len(late))]
        assert 0.3 * exact <= lengths.quantile(share) <= 1.3 * exact
    assert lengths.quantile(0.1) <= lengths.quantile(0.5) <= lengths.quantile(0.9)


def test_the_quantile_says_nothing_while_little_is_known() -> None:
    lengths = AnswerLengths()
    for _ in range(15):
        lengths.observe(1000)
    assert lengths.quantile(0.1) == 1.0


@pytest.mark.parametrize("tokens", [0, -5, 10**400])
def test_nonsense_lengths_do_no_harm(tokens: int) -> None:
    lengths = AnswerLengths()
    lengths.observe(tokens)
    for _ in range(50):
        lengths.observe(40)
    assert math.isfinite(lengths.mean)


def test_the_least_time_is_nothing_until_steps_are_known() -> None:
    predictor = Predictor()
    assert predictor.least_s(request()) == 0.0
    predictor.steps_of(KIND).observe(steps((0.05, 0.0, 0.001), 60))
    assert predictor.least_s(request()) == 0.0
    predictor.steps_of(KIND).observe(steps((0.05, 0.0, 0.001), 300))
    assert predictor.least_s(request(prompt=100)) == pytest.approx(100 * 0.001 + 0.05, rel=0.1)
    assert predictor.least_s(Request(1, "r", "g", "another", 100, 10)) == 0.0


def test_what_the_fastest_takes_is_predicted_while_nobody_is_chosen() -> None:
    predictor = Predictor()
    slow, fast = predictor.steps_of(KIND), predictor.steps_of(("m", Precision.INT8, "fast"))
    assert predictor.steps_of(KIND) is slow
    slow.observe(steps((0.05, 0.0, 0.001), 300))
    assert predictor.least_s(request(prompt=100)) == 0.0  # nothing is known of the other
    fast.observe(steps((0.005, 0.0, 0.0001), 300))
    assert predictor.least_s(request(prompt=100)) == pytest.approx(100 * 0.0001 + 0.005, rel=0.1)
    assert predictor.service_s(request(prompt=100), 10) == pytest.approx(100 * 0.0001 + 10 * 0.005, rel=0.1)
    assert finish_s(slow, request(prompt=100), 10, 0) == pytest.approx(100 * 0.001 + 10 * 0.05, rel=0.1)


def test_kinds_that_nobody_has_seen_before_are_not_remembered_without_end() -> None:
    predictor = Predictor()
    for number in range(10_000):
        predictor.steps_of(("m", Precision.INT8, f"made up {number}"))
    assert len(predictor.steps) <= 4096


def test_the_least_time_never_exceeds_the_likely_one() -> None:
    predictor = Predictor()
    predictor.steps_of(KIND).observe(steps((0.05, 0.001, 0.001), 500))
    for _ in range(100):
        predictor.observe_answer(request(), 64)
    for most in (0, 1, 10, 64, 1000):
        asked = request(most=most)
        assert predictor.least_s(asked) <= predictor.service_s(asked, predictor.output_tokens(asked))


def test_answers_are_learned_by_model_and_class_and_never_exceed_what_was_asked() -> None:
    predictor = Predictor()
    for _ in range(300):
        predictor.observe_answer(request(n=2), 100)
    assert predictor.output_tokens(request(most=1000)) == pytest.approx(50, rel=0.05)
    assert predictor.output_tokens(request(most=7)) == 7.0
    assert predictor.output_tokens(request(most=1000, qos=QosClass.BATCH)) == 128.0
