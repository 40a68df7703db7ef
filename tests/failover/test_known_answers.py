"""An executor that gets a request with the tokens of a lost one goes on bit for bit, wherever the answer was cut."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from headrace.chassis.config import default_home
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.model import ModelInfo
from headrace.core.request import Sampling
from headrace.executor.engines.openvino import OpenVinoEngine
from headrace.executor.engines.protocol import Engine
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.sampler import Choice
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker
from headrace.models.repository import Repository

PATIENCE_S = 120
INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))
ENGINES: dict[str, Callable[[], Engine]] = {
    "reference": lambda: ReferenceEngine(INFO, 1024),
    "openvino": lambda: OpenVinoEngine(Repository(default_home()).get("smollm2"), kv_bytes=1 << 28, threads=2),
}
PROMPT = np.arange(65, 65 + 45, dtype=np.uint32)
SETTINGS = {
    "greedy": Sampling(max_tokens=12, ignore_eos=True),
    "seeded": Sampling(max_tokens=12, ignore_eos=True, temperature=1.3, seed=7, logprobs=2),
    "penalised": Sampling(
        max_tokens=12, min_tokens=9, temperature=0.8, seed=3, repetition_penalty=1.3, presence_penalty=0.4, logprobs=1
    ),
    "several": Sampling(max_tokens=9, ignore_eos=True, temperature=1.0, seed=11, n=3),
}


@pytest.fixture(scope="module", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    loaded = ENGINES[request.param]()
    yield loaded
    loaded.close()


def answers(engine: Engine, job: Job) -> dict[int, list[Choice]]:
    """What the executor makes of the job, by index. Raises what fails it."""
    made: dict[int, list[Choice]] = defaultdict(list)
    errors: list[HeadraceError] = []
    done = threading.Event()

    def deliver(result: StepResult) -> None:
        for delta in result.deltas:
            if delta.choice is not None:
                made[delta.index].append(delta.choice)
            if delta.error is not None:
                errors.append(delta.error)
        if result.finished:
            done.set()

    worker = Worker(engine, (2,), num_slots=8, step_tokens=64, deliver=deliver, failed=errors.append)  # type: ignore[arg-type]
    with worker:
        worker.submit(job)
        assert done.wait(PATIENCE_S)
    assert worker.pool.num_in_use == worker.pool.num_reserved == 0
    if errors:
        raise errors[0]
    return made


def known(choices: list[Choice]) -> np.ndarray:
    return np.array([choice.token_id for choice in choices], np.uint32)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_an_answer_goes_on_as_if_nothing_had_been(engine: Engine, name: str) -> None:
    job = Job(1, "whole", PROMPT, SETTINGS[name])
    whole = answers(engine, job)
    for cut in (1, 5, len(whole[0]) - 1):
        begun = tuple(known(whole[index][:cut]) for index in range(job.sampling.n))
        ended = frozenset(index for index in range(job.sampling.n) if len(whole[index]) <= cut)
        rest = answers(engine, replace(job, request_id=f"cut {cut}", answers=begun, ended=ended))
        for index in range(job.sampling.n):
            assert rest.get(index, []) == whole[index][cut:], (index, cut)


def test_answers_may_stand_at_different_places(engine: Engine) -> None:
    job = Job(1, "whole", PROMPT, SETTINGS["several"])
    whole = answers(engine, job)
    for cuts in ((4, 0, 2), (0, 0, 3), (0, 5, 1), (3, 0, 0)):
        begun = tuple(known(whole[index][:cut]) for index, cut in enumerate(cuts))
        rest = answers(engine, replace(job, request_id=f"{cuts}", answers=begun))
        assert dict(rest) == {index: whole[index][cut:] for index, cut in enumerate(cuts)}


def test_an_answer_that_has_ended_is_not_made_again(engine: Engine) -> None:
    job = Job(1, "whole", PROMPT, SETTINGS["several"])
    whole = answers(engine, job)
    begun = (known(whole[0]), known(whole[1][:2]), known(whole[2][:4]))
    rest = answers(engine, replace(job, request_id="again", answers=begun, ended=frozenset({0})))
    assert rest == {1: whole[1][2:], 2: whole[2][4:]}


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        ((np.full(12, 65, np.uint32),), frozenset()),
        ((np.full(1, 2**31, np.uint32),), frozenset()),
        ((PROMPT[:1], PROMPT[:1]), frozenset()),
        ((), frozenset({0})),
        ((), frozenset({5})),
    ],
    ids=["no room left", "no token of the model", "too many answers", "nothing to do", "no such answer"],
)
def test_known_answers_that_cannot_be_are_refused(begun: tuple[np.ndarray, ...], ended: frozenset[int]) -> None:
    engine = ENGINES["reference"]()
    with pytest.raises(InvalidRequest):
        answers(engine, Job(1, "x", PROMPT, SETTINGS["greedy"], answers=begun, ended=ended))
