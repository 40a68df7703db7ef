"""Displaced requests go on as if nothing had been: bit for bit, whenever it happens, with their KV kept or dropped."""

import random
import threading
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import HeadraceError
from headrace.core.request import Sampling
from headrace.executor.engines.protocol import Engine
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker

PATIENCE_S = 120
Answers = dict[tuple[str, int], list[Any]]


class Run:
    """One worker's life: victims from the start, and others that displace them after so many deliveries."""

    def __init__(self, engine: Engine, num_slots: int, step_tokens: int = 64) -> None:
        self.answers: Answers = defaultdict(list)
        self.errors: list[HeadraceError] = []
        self.finished: dict[str, int] = {}
        self.most_running = 0
        self.pauses = 0
        self._due: dict[int, list[Job]] = defaultdict(list)
        self._deliveries = 0
        self._wanted: set[str] = set()
        self._done = threading.Event()
        self.worker = Worker(
            engine, (), num_slots=num_slots, step_tokens=step_tokens, deliver=self._deliver, failed=self._failed
        )

    def go(self, jobs: list[Job], later: dict[int, list[Job]] | None = None) -> "Run":
        self._due.update(later or {})
        self._wanted = {job.request_id for job in jobs} | {job.request_id for due in self._due.values() for job in due}
        with self.worker:
            for job in jobs:
                self.worker.submit(job)
            assert self._done.wait(PATIENCE_S), f"left: {self._wanted - self.finished.keys()}, {self.worker.status()}"
        assert self.worker.pool.num_in_use == self.worker.pool.num_reserved == 0
        self.worker.pool.check()
        assert not self.errors
        return self

    def _deliver(self, result: StepResult) -> None:
        """On the worker's thread: what is asked for here takes effect at the next boundary."""
        self.most_running = max(self.most_running, self.worker.status().num_slots_in_use)
        for delta in result.deltas:
            if delta.error is not None:
                self.errors.append(delta.error)
            if delta.choice is not None:
                self.answers[delta.job.request_id, delta.index].append(delta.choice)
        self._deliveries += 1
        for number in [number for number in self._due if number <= self._deliveries]:
            for job in self._due.pop(number):
                self.worker.submit(job)
        for request_id, tokens in zip(result.finished, result.output_tokens, strict=True):
            self.finished[request_id] = tokens
            if request_id.startswith("vip"):
                self.pauses += len(self.worker.paused_ids)
                self.worker.resume(self.worker.paused_ids)
        if not result.started and self.finished.keys() >= self._wanted:
            self._done.set()
        if self._due and not self.worker.status().num_running:
            for job in self._due.pop(min(self._due)):  # everybody has ended before it was its time
                self.worker.submit(job)

    def _failed(self, error: Exception) -> None:
        raise error


def victims(seed: int, count: int = 4) -> list[Job]:
    drawn = random.Random(seed)
    jobs = []
    for number in range(count):
        prompt = np.array([drawn.randrange(32, 127) for _ in range(drawn.randrange(1, 100))], np.uint32)
        sampling = Sampling(
            max_tokens=drawn.randrange(5, 40),
            temperature=drawn.choice([0.0, 0.9]),
            seed=drawn.randrange(1000),
            n=drawn.choice([1, 1, 2, 3]),
            logprobs=3,
            repetition_penalty=drawn.choice([1.0, 1.2]),
            ignore_eos=True,
        )
        jobs.append(Job(1, f"victim-{number}", prompt, sampling, priority=3))
    return jobs


def vips(seed: int, jobs: list[Job], count: int) -> dict[int, list[Job]]:
    drawn = random.Random(-seed)
    later: dict[int, list[Job]] = defaultdict(list)
    for number in range(count):
        chosen = drawn.sample(jobs, drawn.randrange(1, len(jobs) + 1))
        displaced = tuple((job.request_id, drawn.random() < 0.5) for job in chosen)
        prompt = np.array([drawn.randrange(32, 127) for _ in range(drawn.randrange(2, 40))], np.uint32)
        job = Job(2, f"vip-{number}", prompt, Sampling(max_tokens=drawn.randrange(1, 6)), 1, displaced=displaced)
        later[drawn.randrange(1, 25)].append(job)
    return later


def alone(engine: Engine, jobs: list[Job]) -> Answers:
    answers: Answers = {}
    for job in jobs:
        answers |= Run(engine, num_slots=4).go([job]).answers
    return answers


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_what_they_are_alone(engine: Engine, seed: int) -> None:
    jobs = victims(seed)
    later = vips(seed, jobs, 5)
    run = Run(engine, num_slots=sum(job.sampling.n for job in jobs) + 5).go(jobs, later)
    assert run.pauses > 0
    expected = alone(engine, jobs)
    if engine.spec.exact:
        assert {key: run.answers[key] for key in expected} == expected
    for job in jobs:
        assert run.finished[job.request_id] == job.sampling.n * job.sampling.max_tokens


@pytest.mark.parametrize("drop_kv", [False, True])
def test_a_displaced_request_gives_its_slots(engine: Engine, drop_kv: bool) -> None:
    """Every slot is taken: without those of the displaced there is none for the other."""
    victim = replace(victims(1, 1)[0], sampling=Sampling(max_tokens=60, n=2, ignore_eos=True))
    vip = Job(
        2, "vip-0", np.array([65, 66, 67], np.uint32), Sampling(max_tokens=4, n=2), displaced=(("victim-0", drop_kv),)
    )
    run = Run(engine, num_slots=2).go([victim], {10: [vip]})
    assert run.most_running == 2
    assert run.pauses == 1
    assert run.answers["victim-0", 1] == alone(engine, [victim])["victim-0", 1]
