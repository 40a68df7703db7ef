"""Choosing tokens: what each setting does, and that a choice depends on nothing else."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.core.errors import EngineFault
from headrace.core.request import Sampling
from headrace.executor.draw import draw, ordered_prefix, uniform, weights
from headrace.executor.sampler import SequenceSampler

VOCAB = 1500  # wider than the least of WIDER_TOKENS, so that candidates, a wider prefix and the whole row all occur
EOS = 7


class Rows:
    """A step's output with the given logits, as an engine reports it."""

    def __init__(self, logits: NDArray[np.float32], num_candidates: int = 16) -> None:
        self._logits = np.ascontiguousarray(np.atleast_2d(logits), np.float32)
        order = [ordered_prefix(row, len(row))[:num_candidates] for row in self._logits]
        self.candidate_ids = np.array(order, np.int32)
        self.candidate_logits = np.take_along_axis(self._logits, self.candidate_ids, axis=1)
        self.best = self.candidate_ids[:, 0], self.candidate_logits[:, 0]

    def logits(self, row: int) -> NDArray[np.float32]:
        return self._logits[row]


def make(sampling: Sampling, prompt: tuple[int, ...] = (), index: int = 0, vocab: int = VOCAB) -> SequenceSampler:
    return SequenceSampler(sampling, index, np.array(prompt, np.uint32), (EOS,), vocab)


def row_of(seed: int, spread: float, levels: int = 0) -> NDArray[np.float32]:
    """Random logits; with `levels`, of so many distinct values only, so that many tie."""
    values = np.random.default_rng(seed).normal(0, spread, VOCAB)
    return (np.round(values * levels) / levels if levels else values).astype(np.float32)


sampled = st.builds(
    Sampling,
    temperature=st.sampled_from([0.01, 0.3, 1.0, 2.5, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 15, 16, 17, 200, VOCAB]),
    top_p=st.sampled_from([1.0, 1.0, 0.05, 0.5, 0.9, 0.999999]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, -2.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -1.0, 1.5]),
    min_tokens=st.sampled_from([0, 0, 100]),
    logit_bias=st.sampled_from([(), (), ((0, -100.0),), ((1, 5.0), (2, -3.0), (VOCAB - 1, 30.0), (EOS, 1.0))]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=150, deadline=None)
@given(sampled, st.integers(0, 1000), st.sampled_from([0.1, 2.0, 8.0]), st.sampled_from([0, 0, 4]), st.data())
def test_few_candidates_give_the_same_token_as_the_whole_row(
    sampling: Sampling, seed: int, spread: float, levels: int, data: st.DataObject
) -> None:
    row = row_of(seed, spread, levels)
    accepted = data.draw(st.lists(st.sampled_from([0, 1, 2, *np.argsort(-row)[:5].tolist()]), max_size=6))
    choices = set()
    for num_candidates in (1, 16, 64, VOCAB):
        sampler = make(sampling, prompt=(3, 4, 5, 5))
        for token in accepted:
            sampler.accept(token)
        choices.add(sampler.choose(Rows(row, num_candidates), 0).token_id)
    assert len(choices) == 1


@settings(max_examples=150, deadline=None)
@given(sampled, st.integers(0, 1000), st.sampled_from([0.1, 2.0, 8.0]), st.floats(0, 1, exclude_max=True))
def test_draw_agrees_with_the_definition(sampling: Sampling, seed: int, spread: float, point: float) -> None:
    row = row_of(seed, spread).astype(np.float64)
    ids = ordered_prefix(row, VOCAB)
    scaled = row / sampling.temperature
    probability = np.exp(scaled - scaled.max())[ids]
    probability[sampling.top_k or VOCAB :] = 0
    probability /= probability.sum()
    probability[np.cumsum(probability) - probability >= sampling.top_p] = 0
    probability[probability < sampling.min_p * probability[0]] = 0
    cdf = np.cumsum(probability) / probability.sum()

    place = draw(row[ids], True, sampling, point, lambda: float(weights(row, row.max(), sampling.temperature).sum()))
    assert place is not None
    assert probability[place] > 0
    assert (cdf[place - 1] if place else 0.0) - 1e-9 <= point <= cdf[place] + 1e-9


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(1, VOCAB), st.sampled_from([0, 1, 4]))
def test_ordered_prefix_is_a_prefix_of_the_stable_order(seed: int, count: int, levels: int) -> None:
    row = row_of(seed, 1.0, levels)
    prefix = ordered_prefix(row, count)
    assert len(prefix) >= count
    assert prefix.tolist() == sorted(range(VOCAB), key=lambda token: (-row[token], token))[: len(prefix)]


def test_draws_follow_the_probabilities() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    rows = Rows(np.log(probabilities), num_candidates=4)
    sampler = make(Sampling(temperature=1.0, seed=11), vocab=4)
    counts: Counter[int] = Counter()
    for _ in range(4000):
        token = sampler.choose(rows, 0).token_id
        sampler.accept(token)
        counts[token] += 1
    assert [counts[token] / 4000 for token in range(4)] == pytest.approx(probabilities.tolist(), abs=0.03)


def test_the_draw_is_keyed_by_seed_answer_and_position() -> None:
    points = {uniform(seed, index, p) for seed in (0, 1, 2**64 - 1) for index in range(3) for p in range(50)}
    assert len(points) == 3 * 3 * 50
    assert all(0 <= point < 1 for point in points)
    assert uniform(5, 1, 9) == uniform(5, 1, 9)


def test_a_resumed_answer_draws_on_as_if_never_interrupted() -> None:
    sampling = Sampling(temperature=1.0, seed=3, presence_penalty=0.5, repetition_penalty=1.2)
    rows = [Rows(row_of(step, 2.0)) for step in range(12)]
    whole, tokens = make(sampling, prompt=(1, 2)), []
    for step in rows:
        tokens.append(whole.choose(step, 0).token_id)
        whole.accept(tokens[-1])
    moved = make(sampling, prompt=(1, 2))
    for token in tokens[:5]:
        moved.accept(token)
    for token, step in zip(tokens[5:], rows[5:], strict=True):
        assert moved.choose(step, 0).token_id == token
        moved.accept(token)


def test_the_first_of_several_answers_is_the_only_one_of_a_single() -> None:
    rows = Rows(row_of(1, 0.5))
    single = make(Sampling(temperature=1.0, seed=9)).choose(rows, 0)
    several = [make(Sampling(temperature=1.0, seed=9, n=4), index=index).choose(rows, 0) for index in range(4)]
    assert several[0] == single
    assert len({choice.token_id for choice in several}) > 1


def test_batch_mates_change_nothing() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=4, logprobs=5)
    alone = make(sampling).choose(Rows(row_of(0, 2.0)), 0)
    crowd = Rows(np.stack([row_of(seed, 2.0) for seed in (5, 6, 0, 7)]))
    assert make(sampling).choose(crowd, 2) == alone


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[900, 400, 1200]] = 5
    assert make(Sampling()).choose(Rows(row), 0).token_id == 400
    assert make(Sampling(frequency_penalty=1.0)).choose(Rows(row), 0).token_id == 400


def test_penalties_by_hand() -> None:
    row = np.full(VOCAB, -9.0, np.float32)
    row[[0, 1, 2, 3]] = [4.0, 3.0, 2.5, -1.0]

    def greedy(sampling: Sampling, prompt: tuple[int, ...], answer: tuple[int, ...]) -> int:
        sampler = make(sampling, prompt)
        for token in answer:
            sampler.accept(token)
        return sampler.choose(Rows(row), 0).token_id

    # repetition counts the prompt; 4 / 2 = 2 falls below 3, then 3 / 2 below 2.5
    assert greedy(Sampling(repetition_penalty=2.0), (0, 0), ()) == 1
    assert greedy(Sampling(repetition_penalty=2.0), (0,), (1,)) == 2
    # presence and frequency do not count it; 4 - 0.75 * 1 = 3.25 stays first, 4 - 0.75 * 2 = 2.5 < 3
    assert greedy(Sampling(frequency_penalty=0.75), (0, 0, 0), (0,)) == 0
    assert greedy(Sampling(frequency_penalty=0.75), (), (0, 0)) == 1
    assert greedy(Sampling(presence_penalty=0.75), (), (0, 0, 0)) == 0
    # a negative penalty lifts a token: -1 + 2 * 3 = 5 > 4
    assert greedy(Sampling(frequency_penalty=-2.0), (), (3, 3, 3)) == 3
    # a negative logit is multiplied: 0.1 * -1 = -0.1 < 4 / 0.1
    assert greedy(Sampling(repetition_penalty=0.1), (3, 2), ()) == 2


def test_many_distinct_tokens_are_counted() -> None:
    sampler = make(Sampling(presence_penalty=2.0))
    for token in range(200):
        sampler.accept(token)
    assert sampler.choose(Rows(np.ones(VOCAB, np.float32)), 0).token_id == 200


def test_min_tokens_masks_what_ends_the_answer() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[EOS, 12, 13]] = [9, 8, 7]
    sampling = Sampling(min_tokens=1, stop_token_ids=(12,))
    sampler = make(sampling)
    assert not sampler.certain(EOS)
    assert sampler.choose(Rows(row), 0).token_id == 13
    sampler.accept(13)
    assert sampler.certain(EOS)
    assert sampler.choose(Rows(row), 0).token_id == EOS
    assert make(dataclasses.replace(sampling, ignore_eos=True)).choose(Rows(row), 0).token_id == EOS
    drawn = make(dataclasses.replace(sampling, temperature=0.01, seed=1)).choose(Rows(row), 0)
    assert drawn.token_id == 13


def test_only_a_plain_greedy_choice_is_certain_to_be_the_first_candidate() -> None:
    assert make(Sampling()).certain(0)
    assert make(Sampling(min_tokens=5, ignore_eos=True)).certain(0)
    for field, value in (("temperature", 0.5), ("logprobs", 0), ("min_tokens", 1), ("repetition_penalty", 1.1)):
        assert not make(dataclasses.replace(Sampling(), **{field: value})).certain(0)


def test_logprobs_are_of_the_raw_logits() -> None:
    probabilities = np.array([0.6, 0.3, 0.1])
    rows = Rows(np.log(probabilities), num_candidates=2)
    sampler = make(Sampling(temperature=0.5, seed=1, presence_penalty=2.0, logprobs=3), vocab=3)
    sampler.accept(0)
    choice = sampler.choose(rows, 0)
    assert [token for token, _ in choice.top] == [0, 1, 2]
    assert np.exp([logprob for _, logprob in choice.top]) == pytest.approx(probabilities)
    assert choice.logprob == dict(choice.top)[choice.token_id]
    assert make(Sampling(logprobs=0), vocab=3).choose(rows, 0).top == ()
    assert make(Sampling(), vocab=3).choose(rows, 0).logprob == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_no_number_is_the_engines_fault(bad: float) -> None:
    row = row_of(0, 1.0)
    row[1400] = bad
    with pytest.raises(EngineFault):
        make(Sampling(temperature=1.0, top_k=2)).choose(Rows(row), 0)


def test_a_row_of_another_width_is_the_engines_fault() -> None:
    with pytest.raises(EngineFault):
        make(Sampling(), vocab=VOCAB + 1).choose(Rows(row_of(0, 1.0)), 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_is_added_after_the_penalties_and_is_no_logprob(temperature: float) -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[3, 4, 5]] = 8.0, 7.0, 6.0
    sampling = Sampling(temperature=temperature, repetition_penalty=2.0, logit_bias=((3, 40.0), (9, 50.0)), logprobs=1)
    choice = make(sampling, prompt=(3,)).choose(Rows(row), 0)
    assert choice.token_id == 9, "8 / 2 + 40 is less than 50"
    assert choice.top[0][0] == 3
    sampling = dataclasses.replace(sampling, logit_bias=((3, 40.0), (9, 43.0)))
    assert make(sampling, prompt=(3,)).choose(Rows(row), 0).token_id == 3, "8 / 2 + 40"
