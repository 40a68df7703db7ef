"""A prompt whose beginning comes from the cache is answered as if it had been computed: bit for bit, in company too."""

import random
import threading
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.core.request import Sampling
from headrace.executor.engines.protocol import Engine
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker

PATIENCE_S = 120
Answers = dict[tuple[str, int], list[Any]]


class Run:
    """Groups of jobs one after the other on one worker; `later` come after so many deliveries."""

    def __init__(
        self,
        engine: Engine,
        groups: list[list[Job]],
        cache: PrefixCache | None,
        step_tokens: int,
        later: dict[int, Job],
    ) -> None:
        self.answers: Answers = defaultdict(list)
        self.cached: dict[str, int] = {}
        self._groups, self._later = list(groups), dict(later)
        self._open: set[str] = set()
        self._done = threading.Event()
        self._deliveries = 0
        self._worker = Worker(
            engine, (), num_slots=32, step_tokens=step_tokens, deliver=self._deliver, failed=self._failed, cache=cache
        )
        with self._worker:
            self._next_group()
            assert self._done.wait(PATIENCE_S), f"left: {self._open}, {self._worker.status()}"
        pool = self._worker.pool
        pool.check()
        assert pool.num_in_use == pool.num_reserved == 0

    def _next_group(self) -> None:
        group = self._groups.pop(0)
        self._open = {job.request_id for job in group} | {job.request_id for job in self._later.values()}
        for job in group:
            self._worker.submit(job)

    def _deliver(self, result: StepResult) -> None:
        for delta in result.deltas:
            assert delta.error is None
            assert delta.sequence is not None
            self.cached[delta.job.request_id] = delta.sequence.cached_tokens
            self.answers[delta.job.request_id, delta.index].append(delta.choice)
        self._deliveries += 1
        if job := self._later.pop(self._deliveries, None):
            self._worker.submit(job)
        self._open -= set(result.finished)
        if not self._open:
            if self._groups:
                self._next_group()
            else:
                self._done.set()

    def _failed(self, error: Exception) -> None:
        raise error


def run_jobs(
    engine: Engine,
    groups: list[list[Job]],
    cache: PrefixCache | None = None,
    step_tokens: int = 640,
    later: dict[int, Job] | None = None,
) -> Run:
    return Run(engine, groups, cache, step_tokens, later or {})


def family(seed: int, block_tokens: int) -> list[Job]:
    """Prompts that begin alike for some way: at borders of blocks, beside them, and all the way."""
    drawn = random.Random(seed)

    def text(count: int) -> list[int]:
        return [drawn.randrange(32, 127) for _ in range(count)]

    trunk = text(5 * block_tokens + 3)
    cuts = [0, 1, block_tokens - 1, block_tokens, block_tokens + 1, block_tokens + 2, 3 * block_tokens, len(trunk)]
    jobs = []
    for number, cut in enumerate([len(trunk), *drawn.choices(cuts, k=7), len(trunk)]):
        prompt = trunk[:cut] + text(drawn.choice([0, 1, 2, block_tokens, 2 * block_tokens + 1]))
        sampling = Sampling(
            max_tokens=drawn.randrange(1, 12),
            temperature=drawn.choice([0.0, 0.9]),
            seed=drawn.randrange(1000),
            n=drawn.choice([1, 1, 2]),
            logprobs=3,
            ignore_eos=True,
        )
        jobs.append(Job(1, f"r{number}", np.array(prompt or [65], np.uint32), sampling))
    return jobs


def alone(engine: Engine, jobs: list[Job]) -> Answers:
    answers: Answers = {}
    for job in jobs:
        answers |= run_jobs(engine, [[job]]).answers
    return answers


@pytest.mark.parametrize("seed", range(3))
def test_a_hit_answers_what_a_miss_does(engine: Engine, seed: int) -> None:
    jobs = family(seed, engine.spec.block_tokens)
    expected = alone(engine, jobs)
    cache = PrefixCache(b"seed")
    one_by_one = run_jobs(engine, [[job] for job in jobs], cache)
    assert cache.counts.cached_tokens > 0
    together = run_jobs(engine, [jobs], PrefixCache(b"seed"), 48)
    if engine.spec.exact:
        assert one_by_one.answers == expected
        assert together.answers == expected
    assert one_by_one.answers.keys() == together.answers.keys() == expected.keys()


def test_all_but_what_must_be_computed_is_found(engine: Engine) -> None:
    block = engine.spec.block_tokens
    prompt = np.arange(40, 40 + 3 * block, dtype=np.uint32) % 90 + 32
    for extra in (0, engine.spec.min_chunk_tokens - 1, engine.spec.min_chunk_tokens):
        job = Job(1, "first", np.concatenate([prompt, np.full(extra, 65, np.uint32)]), Sampling(max_tokens=1))
        run = run_jobs(engine, [[job], [replace(job, request_id="second")]], PrefixCache(b""))
        least = max(1, engine.spec.min_chunk_tokens)
        assert run.cached["first"] == 0
        assert run.cached["second"] == (len(job.prompt_ids) - least) // block * block


def test_who_is_still_running_shares_already(engine: Engine) -> None:
    block = engine.spec.block_tokens
    prompt = np.arange(4 * block, dtype=np.uint32) % 90 + 32
    long = Job(1, "long", prompt, Sampling(max_tokens=30, ignore_eos=True))
    late = Job(1, "late", prompt, Sampling(max_tokens=2, ignore_eos=True))
    run = run_jobs(engine, [[long]], PrefixCache(b""), later={5: late})
    assert run.cached["late"] >= 3 * block


def test_other_scopes_and_answers_are_not_found(engine: Engine) -> None:
    block = engine.spec.block_tokens
    prompt = np.arange(2 * block + 2, dtype=np.uint32) % 90 + 32
    first = Job(1, "first", prompt, Sampling(max_tokens=2 * block, ignore_eos=True), scope=b"a")
    stranger = replace(first, request_id="stranger", scope=b"b")
    run = run_jobs(engine, [[first], [stranger]], PrefixCache(b""))
    assert run.cached == {"first": 0, "stranger": 0}
    answer = np.array([choice.token_id for choice in run.answers["first", 0]], np.uint32)
    turn = Job(1, "turn", np.concatenate([prompt, answer, np.full(3, 66, np.uint32)]), Sampling(max_tokens=1))
    for answers, cached in ((False, 2 * block), (True, 4 * block)):
        run = run_jobs(engine, [[replace(first, scope=b"")], [turn]], PrefixCache(b"", answers=answers))
        assert run.cached["turn"] == cached
