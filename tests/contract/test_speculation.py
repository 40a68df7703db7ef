"""Answers with tokens guessed ahead are bit for bit those without: alone, in company, sampled, displaced."""

import random
import threading
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.core.request import Sampling
from headrace.executor.engines.protocol import Engine
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker

PATIENCE_S = 120
Answers = dict[tuple[str, int], list[Any]]


@pytest.fixture(autouse=True)
def exact(engine: Engine) -> None:
    if not engine.spec.exact:
        pytest.skip("only exact engines have their answers guessed ahead")


class Run:
    """The jobs on a worker of their own, to the end; `displacer` comes in after so many deliveries."""

    def __init__(
        self, engine: Engine, jobs: list[Job], speculation: int, displacer: Job | None = None, after: int = 6
    ) -> None:
        self.answers: Answers = defaultdict(list)
        self._displacer, self._after = displacer, after
        self._left = {job.request_id for job in jobs} | ({displacer.request_id} if displacer else set())
        self._done = threading.Event()
        self._worker = Worker(
            engine,
            (),
            num_slots=16,
            step_tokens=64,
            deliver=self._deliver,
            failed=self._failed,
            speculation=speculation,
        )
        with self._worker:
            for job in jobs:
                self._worker.submit(job)
            assert self._done.wait(PATIENCE_S), f"left: {self._left}, {self._worker.status()}"
        self.status = self._worker.status()
        self._worker.pool.check()
        assert self._worker.pool.num_in_use == self._worker.pool.num_reserved == 0

    def _deliver(self, result: StepResult) -> None:
        for delta in result.deltas:
            assert delta.error is None
            self.answers[delta.job.request_id, delta.index].append(delta.choice)
        self._left -= set(result.finished)
        self._after -= 1
        if self._displacer and self._after <= 0:
            self._worker.submit(self._displacer)
            self._displacer = None
        if self._worker.paused_ids and "vip" not in self._left:
            self._worker.resume(self._worker.paused_ids)
        if not self._left:
            self._done.set()

    def _failed(self, error: Exception) -> None:
        raise error


def repetitive(seed: int, count: int) -> list[Job]:
    """Prompts that say one line again and again, so that answers take it up; all ways of choosing tokens."""
    drawn = random.Random(seed)
    jobs = []
    for number in range(count):
        line = [drawn.randrange(300, 500) for _ in range(drawn.randrange(2, 12))]
        sampling = Sampling(
            max_tokens=drawn.randrange(20, 50),
            min_tokens=drawn.choice([0, 10]),
            temperature=drawn.choice([0.0, 0.0, 0.6]),
            seed=drawn.randrange(1000),
            n=drawn.choice([1, 1, 2]),
            logprobs=drawn.choice([None, 3, 3]),
            repetition_penalty=drawn.choice([1.0, 1.0, 1.05]),
            stop_token_ids=tuple(drawn.sample(line, drawn.choice([0, 0, 1]))),
            ignore_eos=True,
        )
        jobs.append(Job(1, f"r{number}", np.array(line * drawn.randrange(3, 9), np.uint32), sampling, priority=3))
    return jobs


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_bit_for_bit_those_without_guesses(engine: Engine, seed: int) -> None:
    jobs = repetitive(seed, 2)
    plain, guessed = Run(engine, jobs, 0), Run(engine, jobs, 4)
    assert plain.status.num_proposed_tokens == 0
    assert guessed.answers == plain.answers
    alone = Run(engine, jobs[:1], 7).answers
    assert alone == {key: plain.answers[key] for key in alone}


def test_repetition_takes_fewer_steps(engine: Engine) -> None:
    """A model takes up what is said again and again; the reference engine does not."""
    prompt = np.array(list(range(300, 310)) * 8, np.uint32)
    run = Run(engine, [Job(1, "r", prompt, Sampling(max_tokens=30, ignore_eos=True))], 4)
    accepted = run.status.num_accepted_tokens
    assert len(run.answers["r", 0]) == 30
    assert (accepted > 10) == (engine.spec.exact and engine.spec.name != "reference")
    assert accepted <= run.status.num_proposed_tokens


@pytest.mark.parametrize("drop_kv", [False, True])
def test_displaced_in_the_middle_of_guessing(engine: Engine, drop_kv: bool) -> None:
    jobs = [replace(job, sampling=replace(job.sampling, max_tokens=60, stop_token_ids=())) for job in repetitive(9, 2)]
    plain = Run(engine, jobs, 0).answers
    vip = Job(
        2,
        "vip",
        np.array([65, 66, 67] * 6, np.uint32),
        Sampling(max_tokens=10, ignore_eos=True),
        displaced=tuple((job.request_id, drop_kv) for job in jobs),
    )
    answers = Run(engine, jobs, 4, vip).answers
    assert {key: answers[key] for key in plain} == plain
    assert len(answers["vip", 0]) == 10
