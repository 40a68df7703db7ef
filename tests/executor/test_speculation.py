"""Guesses: what they are, when they are worth a row, and that no answer is another for them."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import PoolExhausted
from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Sampling
from headrace.core.step_model import StepModel
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.memory.engine_memory import EngineMemory
from headrace.executor.planner import Row
from headrace.executor.residents import Residents
from headrace.executor.sequence import Job
from headrace.executor.speculation import Acceptance, Width, guess_next, likeliest, worth
from headrace.executor.speculator import MOST_ROWS, Speculator
from headrace.executor.staging import MOST_DUMMIES, staging_bytes, staging_rows
from headrace.executor.step_plan import to_step_plan
from headrace.executor.step_result import StepResult
from headrace.executor.stepper import Stepper

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))
PERIOD = 6
NUM_BLOCKS = 512


class Repeating(ReferenceEngine):
    """Its next token is most often the one that stood `PERIOD` places before it, read through the row's own blocks; the
    rule of the engine says when it is not, so that guesses come true and fail in turns."""

    def _logits(self, context):
        logits = super()._logits(context)
        if len(context) > PERIOD and int(context[-1]) % 7 and context[-PERIOD] < 127:
            logits[context[-PERIOD]] = 9 if len(context) % 5 else 4
        return logits


class Loop:
    """A step loop without its thread."""

    def __init__(self, speculation, *, step_tokens=64, num_slots=8, cache=None, num_blocks=NUM_BLOCKS):
        self.engine = Repeating(INFO, num_blocks)
        memory = EngineMemory(self.engine)
        self.pool = BlockPool(num_blocks, self.engine.spec.block_tokens, memory=memory, cache=cache)
        self.residents = Residents(self.engine.spec, self.pool, num_slots, INFO.eos_token_ids)
        self.stepper = Stepper(
            self.engine, self.residents, self.pool, INFO.eos_token_ids, step_tokens, speculation=speculation
        )
        self.base_blocks = self.pool.num_in_use
        self.choices, self.ends, self.left, self.most_rows = {}, {}, [], 0
        forward = self.engine.forward

        def watched(plan):
            self.most_rows = max(self.most_rows, len(plan.past_lens))
            return forward(plan)

        self.engine.forward = watched

    def step(self):
        result = StepResult()
        if self.residents.running:
            self.stepper.step(result)
        self.take(result)
        self.pool.check()

    def take(self, result):
        for delta in result.deltas:
            key = delta.job.request_id, delta.index
            assert delta.error is None
            assert key not in self.ends, "a token after the end"
            if delta.choice is not None:
                self.choices.setdefault(key, []).append(delta.choice)
            if delta.finish is not FinishReason.NONE:
                self.ends[key] = delta.finish
        self.left += result.finished

    def run(self, jobs):
        for job in jobs:
            self.residents.accept(job)
        while self.residents.running:
            self.step()
        assert (self.pool.num_in_use, self.pool.num_reserved) == (self.base_blocks, 0)
        return self


prompts = st.lists(st.sampled_from([4, 65, 66, 67, 68]), min_size=1, max_size=40)
samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 40),
    min_tokens=st.sampled_from([0, 1]),
    temperature=st.sampled_from([0.0, 0.0, 0.5, 1.5]),
    seed=st.integers(0, 9),
    n=st.integers(1, 3),
    logprobs=st.sampled_from([None, 3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    stop_token_ids=st.sampled_from([(), (65, 70), (90,)]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(prompts, samplings), min_size=1, max_size=2), st.integers(1, 7), st.sampled_from([9, 20, 100])
)
def test_answers_are_those_without_guesses(asked, speculation, step_tokens):
    jobs = [
        Job(1, f"r{number}", np.array(prompt, np.uint32), sampling) for number, (prompt, sampling) in enumerate(asked)
    ]
    plain = Loop(0, step_tokens=step_tokens).run(jobs)
    guessed = Loop(speculation, step_tokens=step_tokens).run(jobs)
    assert guessed.choices == plain.choices
    assert guessed.ends == plain.ends
    assert guessed.most_rows <= max(plain.most_rows, MOST_ROWS)
    assert guessed.stepper.num_steps <= plain.stepper.num_steps


@settings(max_examples=60, deadline=None)
@given(
    prompts,
    samplings,
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=3),
    st.sampled_from([None, False, True]),
)
def test_displaced_in_the_middle_of_guessing(prompt, sampling, speculation, pauses, kept):
    job = Job(1, "r", np.array(prompt, np.uint32), sampling)
    expected = Loop(0).run([job])
    cache = None if kept is None else PrefixCache(b"", answers=kept, idle_blocks=8)
    loop = Loop(speculation, cache=cache)
    loop.residents.accept(job)
    for steps, drop_kv in pauses:
        for _ in range(steps):
            loop.step()
        loop.residents.pause("r", drop_kv=drop_kv)
        loop.residents.take_up(everybody=True)
    loop.run([])
    assert loop.choices == expected.choices
    assert loop.ends == expected.ends


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(prompts, st.integers(1, 40)), min_size=2, max_size=6), st.booleans())
def test_the_cache_holds_accepted_tokens_only(asked, answers):
    """Prompts that begin with earlier prompts and answers find in the cache what computing them would give."""
    cache = PrefixCache(b"", answers=answers)
    loop, text = Loop(5, cache=cache), []
    for number, (prompt, max_tokens) in enumerate(asked):
        text = [*text, *prompt]
        job = Job(1, f"r{number}", np.array(text, np.uint32), Sampling(max_tokens=max_tokens, ignore_eos=True))
        assert loop.run([job]).choices[f"r{number}", 0] == Loop(0).run([job]).choices[f"r{number}", 0]
        text += [choice.token_id for choice in loop.choices[f"r{number}", 0]]


def repetitive(**sampling):
    prompt = np.array([65, 66, 67, 68, 69, 71] * 3, np.uint32)
    return Job(1, "r", prompt, Sampling(ignore_eos=True, **sampling))


def test_repetition_takes_fewer_steps():
    plain, guessed = Loop(0).run([repetitive(max_tokens=60)]), Loop(4).run([repetitive(max_tokens=60)])
    assert plain.stepper.num_steps == 60
    assert plain.stepper.speculator.num_proposed == 0
    accepted = guessed.stepper.speculator.num_accepted
    assert guessed.stepper.num_steps == 60 - accepted < 40
    assert accepted <= guessed.stepper.speculator.num_proposed


def test_cancelled_and_late_between_guesses():
    loop = Loop(4)
    for number, deadline in enumerate((None, 5.0, None)):
        loop.residents.accept(
            dataclasses.replace(repetitive(max_tokens=50), request_id=f"r{number}", deadline=deadline)
        )
    for _ in range(5):
        loop.step()
    result = StepResult()
    loop.residents.cancel(1, "r0", result)
    loop.residents.miss_deadlines(6.0, result)
    loop.left += result.finished
    while loop.residents.running:
        loop.step()
    whole = Loop(0).run([dataclasses.replace(repetitive(max_tokens=50), request_id="r2")]).choices["r2", 0]
    for number in range(3):
        answer = loop.choices[f"r{number}", 0]
        assert answer == whole[: len(answer)]
    assert len(loop.choices["r2", 0]) == 50
    assert sorted(loop.left) == ["r0", "r1", "r2"]
    assert (loop.pool.num_in_use, loop.pool.num_reserved) == (loop.base_blocks, 0)


def test_a_guess_without_memory_is_given_up_and_nobody_fails():
    expected = Loop(0).run([repetitive(max_tokens=30)])
    loop = Loop(4)
    loop.residents.accept(repetitive(max_tokens=30))
    (sequence,) = loop.residents.running
    ensure, refused = sequence.table.ensure, []

    def short(num_tokens):
        if num_tokens > sequence.num_tokens and num_tokens > sequence.table.capacity_tokens:
            refused.append(num_tokens)
            raise PoolExhausted("no memory beyond what is known")
        ensure(num_tokens)

    sequence.table = Short(sequence.table, short)
    loop.run([])
    assert refused
    assert loop.choices == expected.choices


class Short:
    """A block table that takes blocks as `ensure` says."""

    def __init__(self, table, ensure):
        self._table, self.ensure = table, ensure

    def __getattr__(self, name):
        return getattr(self._table, name)


def test_full_batches_are_left_alone():
    jobs = [dataclasses.replace(repetitive(max_tokens=20), request_id=f"r{number}") for number in range(MOST_ROWS)]
    loop = Loop(4, num_slots=MOST_ROWS, step_tokens=1000).run(jobs)
    assert loop.stepper.speculator.num_proposed == 0
    assert loop.stepper.num_steps == 20


def test_an_engine_that_is_not_exact_is_given_no_guesses():
    loop = Loop(4)
    loop.engine.spec = dataclasses.replace(loop.engine.spec, exact=False)
    stepper = Stepper(loop.engine, loop.residents, loop.pool, (256,), 64, speculation=4)
    loop.stepper.release()
    loop.stepper, loop.base_blocks = stepper, loop.pool.num_in_use
    loop.run([repetitive(max_tokens=20)])
    assert stepper.speculator.num_proposed == 0


def guess(text, count):
    return bytes(guess_next(np.frombuffer(text.encode(), np.uint8).astype(np.int64), count).astype(np.uint8)).decode()


def test_guesses_by_hand():
    assert guess("the cat saw the ", 4) == "cat "
    assert guess("xbcd1 abcd2 zbcd3 abcd", 3) == "2 z"  # the longer match, not the later
    assert guess("abcd1 abcd2 abcd", 2) == "2 "  # of equal ones the latest
    assert guess("ababab", 5) == "ababa"
    assert guess("aaa", 3) == "aaa"
    assert guess("abcdefb", 3) == ""  # one token alone says too little
    assert guess("the cat saw the ", 0) == ""
    assert guess("aa", 3) == guess("a", 3) == ""


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 7))
def test_a_guess_goes_on_from_the_longest_match(tokens, count):
    found = guess_next(np.array(tokens, np.int64), count).tolist()
    for size in range(5, 1, -1):
        ends = [end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[-size:]]
        if size < len(tokens) and ends:
            assert found == list(itertools.islice(itertools.cycle(tokens[ends[-1] :]), count))
            return
    assert found == []


def test_the_likeliest_go_first():
    assert likeliest([0.5], [3], 7) == [(0.5, 0), (0.25, 0), (0.125, 0)]
    assert likeliest([0.5, 0.75], [4, 2], 3) == [(0.75, 1), (0.5625, 1), (0.5, 0)]
    assert likeliest([1.0, 1.0], [2, 1], 7) == [(1.0, 0), (1.0, 0), (1.0, 1)]
    assert likeliest([], [], 7) == likeliest([0.5], [4], 0) == []


def test_what_rows_are_worth_by_hand():
    assert worth([0.5, 0.25, 0.125], 4, 0, share_s=8, row_s=1) == [0, 3, 4, 4, 3]
    assert worth([0.5, 0.25], 2, 1, share_s=8, row_s=1.5) == [0, 3.5, 4]
    assert worth([], 2, 1, share_s=8, row_s=3) == [0, -1, -4]
    assert worth([0.5], 0, 1, share_s=8, row_s=3) == [0]


def test_the_width_changes_once_a_change_pays():
    width = Width()
    width.begin([0, 1, 1])
    assert width.now == 1  # the least of equal ones
    seen = []
    for values in [[0, 1, 3], [0, 1, 3], [0, -1, -2], [0, 1, 4], [0, -1, -5], [0, -1, -5]]:
        width.follow(values, 5)
        seen.append(width.now)
    # two more, two more, one less, three more: 6 is above 5; then once four less than one row, and five less than none
    assert seen == [1, 1, 1, 2, 2, 0]
    width.begin([0, -1, 2, 1])
    assert width.now == 2


def test_acceptance_by_hand():
    acceptance = Acceptance()
    assert acceptance.rate == pytest.approx(1 / 3)
    acceptance.observe(np.array([1, 2, 3, 4]), np.array([1, 2, 9]))  # two right, the third wrong
    assert acceptance.rate == pytest.approx((0.45 + 2) / (1.35 + 3))
    acceptance = Acceptance()
    acceptance.observe(np.array([1, 2, 3, 4]), np.array([1]))  # the others' turn did not come
    assert acceptance.rate == pytest.approx((0.45 + 1) / (1.35 + 1))
    for _ in range(100):
        acceptance.observe(np.array([5]), np.array([6]))
    assert acceptance.rate == pytest.approx(0, abs=1e-3)


def test_a_row_counts_once_what_it_takes_for_granted_is_so():
    sequence = SimpleNamespace(past=4, finish=FinishReason.NONE, token_ids=np.array([1, 2, 3, 4, 5, 6]))
    assert Row(sequence, 2, 1, True).counts
    assert Row(sequence, 4, 1, True, guess=5).counts
    assert not Row(sequence, 4, 1, True, guess=6).counts
    assert not Row(sequence, 5, 1, True, guess=6).counts  # one before it did not
    sequence.finish = FinishReason.STOP
    assert not Row(sequence, 4, 1, True, guess=5).counts


def test_the_step_times_that_are_known_decide():
    model = StepModel()
    loop = Loop(4)
    loop.residents.accept(repetitive(max_tokens=20))
    loop.step()
    (sequence,) = loop.residents.running
    sequence.acceptance.right = sequence.acceptance.tried = 1.0
    row = Row(sequence, sequence.past, 1, True)

    def extend(budget, coefficients):
        model.coefficients = coefficients
        return Speculator(4, 1).extend([row], budget, model)

    rows, num_rows = extend(64, (0.008, 0.0005, 0.0003))
    assert [(each.past - row.past, each.guess is None) for each in rows] == [
        (0, True),
        (1, False),
        (2, False),
        (3, False),
        (4, False),
    ]
    assert num_rows == 5
    assert extend(64, (0.0, 1.0, 1.0)) == ([row], 1)  # each row costs as much as a step of its own
    assert extend(1, (0.008, 0.0005, 0.0003)) == ([row], 1)  # the step is full


def test_there_is_room_for_all_rows_of_guesses():
    assert MOST_DUMMIES >= MOST_ROWS


def test_stand_ins_keep_the_shape():
    loop = Loop(4)
    loop.residents.accept(repetitive(max_tokens=20))
    loop.step()
    (sequence,) = loop.residents.running
    row = Row(sequence, sequence.past, 1, True)
    spec = dataclasses.replace(loop.engine.spec, min_rows=3)
    staging = staging_rows(memoryview(bytearray(staging_bytes(spec, 64))), spec, 64)
    plan = to_step_plan([row], spec, [7, 8, 9], 2, staging)
    assert len(plan.past_lens) == 3  # the engine wants as many
    assert plan.wanted_tokens.tolist() == [0, 1]
    plan = to_step_plan([row], spec, [7, 8, 9], 6, staging)
    assert plan.subsequence_begins.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert plan.wanted_tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert plan.block_indices[-5:].tolist() == [7, 8, 9, 7, 8]


def test_a_budget_that_changes_between_steps_is_kept():
    loop = Loop(4)
    loop.residents.accept(repetitive(max_tokens=20))
    loop.step()
    (sequence,) = loop.residents.running
    row, speculator = Row(sequence, sequence.past, 1, True), Speculator(4, 1)
    for budget in (64, 3, 64, 1, 2):
        rows, num_rows = speculator.extend([row], budget, StepModel())
        assert len(rows) <= num_rows <= min(5, budget)
