"""Displacing, resuming, cancelling and losing over random histories, a step at a time, without threads.

Whatever happens, no step has more sequences than slots, every answer is the answer alone, and nothing leaks.
"""

import functools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.core.errors import DeadlineMissed, InvalidRequest, PoolExhausted
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Sampling
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.memory.engine_memory import EngineMemory
from headrace.executor.residents import Residents
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.stepper import Stepper

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))
NUM_SLOTS = 5
NUM_BLOCKS = 64
ENDINGS = (FinishReason.STOP, FinishReason.LENGTH)

prompts = st.builds(
    lambda length, first: tuple([first, *range(60, 60 + length)][:length]),
    st.sampled_from([1, 2, 8, 17, 40]),
    st.sampled_from([4, 65, 66, 67]),
)
samplings = st.builds(
    Sampling,
    max_tokens=st.sampled_from([1, 5, 10, 15, 20, 25]),
    temperature=st.sampled_from([0.0, 0.9]),
    seed=st.integers(0, 9),
    n=st.integers(1, 3),
    logprobs=st.sampled_from([None, 2]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
)


class Executor:
    """A step loop without its thread: what it has said so far, by request and answer."""

    def __init__(self, num_slots: int, num_blocks: int, step_tokens: int, cache=None, extent_blocks=1) -> None:
        engine = ReferenceEngine(INFO, num_blocks)
        memory = EngineMemory(engine)  # what it gives back reads as unwritten
        self.pool = BlockPool(
            num_blocks, engine.spec.block_tokens, extent_blocks=extent_blocks, memory=memory, cache=cache
        )
        self.residents = Residents(engine.spec, self.pool, num_slots, INFO.eos_token_ids)
        self.stepper = Stepper(engine, self.residents, self.pool, INFO.eos_token_ids, step_tokens)
        self.base_blocks = self.pool.num_in_use
        self.choices = defaultdict(list)
        self.ended = defaultdict(dict)
        self.finished = {}

    def take(self, result):
        for delta in result.deltas:
            if delta.choice is not None:
                self.choices[delta.job, delta.index].append(delta.choice)
            if delta.finish is not FinishReason.NONE:
                self.ended[delta.job][delta.index] = delta.finish
            assert delta.error is None or isinstance(delta.error, DeadlineMissed), delta.error
        for request_id, output_tokens in zip(result.finished, result.output_tokens, strict=True):
            assert request_id not in self.finished, "it left twice"
            self.finished[request_id] = output_tokens

    def step(self, now=0.0):
        result = StepResult()
        self.residents.miss_deadlines(now, result)
        if self.residents.running:
            self.stepper.step(result)
        self.pool.give_back(now, idle=not self.residents.running)
        self.take(result)


class Name(Job):
    """Jobs stand for themselves: two of one name are two."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@functools.cache
def alone(prompt, sampling):
    executor = Executor(sampling.n, NUM_BLOCKS, 1000)
    job = Name(1, "alone", np.array(prompt, np.uint32), sampling)
    executor.residents.accept(job)
    while executor.residents.running:
        executor.step()
    return [executor.choices[job, index] for index in range(sampling.n)]


class Histories(RuleBasedStateMachine):
    @initialize(
        step_tokens=st.sampled_from([NUM_SLOTS + 2, 11, 30]),
        kept=st.sampled_from(["nothing", "prompts", "answers"]),
        extent_blocks=st.sampled_from([1, 3]),
    )
    def begin(self, step_tokens, kept, extent_blocks):
        cache = None if kept == "nothing" else PrefixCache(b"", answers=kept == "answers", idle_blocks=8)
        self.executor = Executor(NUM_SLOTS, NUM_BLOCKS, step_tokens, cache, extent_blocks)
        self.jobs, self.cut, self.count, self.now = {}, set(), 0, 0.0

    @rule(
        prompt=prompts,
        sampling=samplings,
        priority=st.integers(0, 3),
        lasts=st.sampled_from([None, None, None, None, 3, 12]),
        session=st.integers(1, 2),
        places=st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=3),
        steps=st.sampled_from([0, 1, 2, 3, 5, 8, 12]),
    )
    def submit(self, prompt, sampling, priority, lasts, session, places, steps):
        """A request that displaces some of those that are here, or nobody; then a few steps."""
        here = list(dict.fromkeys(each.job.request_id for each in self.executor.residents.everybody()))
        displaced = tuple((here[place % len(here)] if here else "nobody", drop_kv) for place, drop_kv in places)
        self.count += 1
        deadline = None if lasts is None else self.now + lasts
        job = Name(
            session, f"r{self.count}", np.array(prompt, np.uint32), sampling, priority, deadline, displaced=displaced
        )
        try:
            self.executor.residents.accept(job)
        except PoolExhausted:
            pass
        else:
            self.jobs[job.request_id] = job
        self.steps(steps)

    @rule(place=st.integers(0, 8), drop_kv=st.booleans())
    def refuse(self, place, drop_kv):
        """One that cannot be let in for what it asks displaces nobody."""
        residents = self.executor.residents
        before = residents.paused_ids, [each.past for each in residents.paused]
        displaced = tuple((request_id, drop_kv) for request_id in list(self.jobs)[-place:])
        try:
            residents.accept(Name(3, "bad", np.array([600], np.uint32), Sampling(1), displaced=displaced))
        except InvalidRequest:
            assert (residents.paused_ids, [each.past for each in residents.paused]) == before
        else:
            raise AssertionError("a token outside the vocabulary was let in")

    @rule(place=st.integers(0, 3), everybody=st.booleans(), steps=st.sampled_from([0, 1, 2, 3, 5, 8, 12]))
    def resume(self, place, everybody, steps):
        for request_id in self.executor.residents.paused_ids[place : place + 1]:
            self.executor.residents.resume(request_id)
        self.executor.residents.take_up(everybody=everybody)
        self.steps(steps)

    @rule(place=st.integers(0, 8))
    def cancel(self, place):
        for request_id in list(self.jobs)[-1 - place :][:1]:
            result = StepResult()
            self.executor.residents.cancel(self.jobs[request_id].session, request_id, result)
            self.executor.take(result)
            self.cut.add(request_id)

    def steps(self, count):
        for _ in range(count):
            self.now += 1
            self.executor.step(self.now)
            self.within_slots()

    @invariant()
    def within_slots(self):
        if hasattr(self, "executor"):
            residents = self.executor.residents
            assert len(residents.running) <= NUM_SLOTS
            assert not {id(each) for each in residents.running} & {id(each) for each in residents.paused}
            assert {each.job.request_id for each in residents.paused} == set(residents.paused_ids)
            self.executor.pool.check()

    def teardown(self):
        if not hasattr(self, "executor"):
            return
        executor, residents = self.executor, self.executor.residents
        for _ in range(3000):
            if not residents.num_requests:
                break
            residents.take_up(everybody=True)
            self.now += 1
            executor.step(self.now)
            self.within_slots()
        assert not residents.num_requests, "somebody never goes on"
        assert executor.finished.keys() == self.jobs.keys()
        assert (executor.pool.num_in_use, executor.pool.num_reserved) == (executor.base_blocks, 0)
        for request_id, job in self.jobs.items():
            expected = alone(tuple(job.prompt_ids.tolist()), job.sampling)
            answers = [executor.choices[job, index] for index in range(job.sampling.n)]
            whole = [executor.ended[job].get(index) in ENDINGS for index in range(job.sampling.n)]
            assert all(whole) or job.deadline is not None or request_id in self.cut
            for answer, right, complete in zip(answers, expected, whole, strict=True):
                assert answer == (right if complete else right[: len(answer)])
            assert executor.finished[request_id] == sum(map(len, answers))


Histories.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_histories = Histories.TestCase


@pytest.mark.parametrize("again", ["kept", "dropped"])
@pytest.mark.parametrize("before", range(14))
@pytest.mark.parametrize("between", range(12))
def test_displaced_again_at_any_point_of_being_computed_again(before, between, again):
    sampling = Sampling(max_tokens=8, n=3, temperature=0.9, seed=5, logprobs=2, ignore_eos=True)
    prompt = tuple(range(60, 90))
    executor = Executor(num_slots=3, num_blocks=NUM_BLOCKS, step_tokens=7)
    job = Name(1, "victim", np.array(prompt, np.uint32), sampling)
    executor.residents.accept(job)
    for drop_kv, steps in [(True, before), (again == "dropped", between)]:
        for _ in range(steps):
            executor.step()
        executor.residents.pause("victim", drop_kv=drop_kv)
        held = executor.pool.num_in_use - executor.base_blocks + executor.pool.num_reserved
        assert not (drop_kv and held), "it lost its KV and holds blocks"
        executor.step()
        executor.residents.take_up(everybody=True)
    for _ in range(200):
        executor.step()
        assert len(executor.residents.running) <= 3
    assert [executor.choices[job, index] for index in range(3)] == alone(prompt, sampling)
    assert executor.finished == {"victim": 24}
    assert (executor.pool.num_in_use, executor.pool.num_reserved) == (executor.base_blocks, 0)
