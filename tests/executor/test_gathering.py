"""Gathering: whatever the streams do, every token goes out once and in order, and nobody is held for long."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import EngineFault
from headrace.core.request import FinishReason, QosClass, Sampling
from headrace.executor.gathering import FEW_STREAMS, LONGEST_S, Gathering
from headrace.executor.sampler import Choice
from headrace.executor.sequence import Job
from headrace.executor.step_result import Delta


def a_delta(request_id, token=0, finish=FinishReason.NONE, qos=QosClass.NORMAL, index=0, error=None):
    job = Job(1, request_id, np.array([1]), Sampling(max_tokens=9), priority=int(qos))
    choice = None if error else Choice(token, 0.0, ())
    return Delta(job, index, choice, finish, error)


def step(gathering, now, request_ids, token, **options):
    return gathering.take([a_delta(each, token, **options) for each in request_ids], (), now)


def test_few_streams_send_each_token():
    gathering = Gathering(1)
    names = [f"r{number}" for number in range(FEW_STREAMS)]
    for token in range(5):
        assert len(step(gathering, token / 1000, names, token)) == FEW_STREAMS


def test_many_streams_send_first_tokens_at_once_and_gather_the_others():
    gathering = Gathering(100)
    names = [f"r{number}" for number in range(28)]  # 20 more than few: a piece each 0.2 s
    assert len(step(gathering, 0.0, names, 0)) == 28
    assert step(gathering, 0.1, names, 1) == []
    pieces = step(gathering, 0.25, names, 2)
    assert [[delta.choice.token_id for delta in piece] for piece in pieces] == [[1, 2]] * 28


def test_realtime_never_gathers():
    gathering = Gathering(1)
    names = [f"r{number}" for number in range(100)]
    step(gathering, 0.0, names, 0, qos=QosClass.REALTIME)
    assert len(step(gathering, 0.01, names, 1, qos=QosClass.REALTIME)) == 100


def test_an_end_takes_along_what_was_held_and_so_does_a_failure():
    gathering = Gathering(1)
    names = [f"r{number}" for number in range(100)]
    step(gathering, 0.0, names, 0)
    step(gathering, 0.01, names, 1)
    ended = gathering.take([a_delta("r0", 2, FinishReason.STOP)], ["r0"], 0.02)
    failed = gathering.take([a_delta("r1", error=EngineFault("broken"))], ["r1"], 0.02)
    assert [delta.choice.token_id for delta in ended[0]] == [1, 2]
    assert [delta.error is None for delta in failed[0]] == [True, False]
    left = gathering.take([], ["r2"], 0.02)
    assert [delta.choice.token_id for delta in left[0]] == [1]
    assert gathering.num_streams == 97


def test_nobody_who_stands_still_is_forgotten():
    gathering = Gathering(1)
    names = [f"r{number}" for number in range(100)]
    step(gathering, 0.0, names, 0)
    step(gathering, 0.01, names, 1)
    pieces = step(gathering, 0.01 + LONGEST_S, names[1:], 2)
    assert ["r0"] in [[delta.job.request_id for delta in piece] for piece in pieces]


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1), st.floats(0, 0.5), st.booleans()), max_size=120),
)
def test_each_token_goes_out_once_and_in_order(pieces_per_s, events):
    gathering = Gathering(pieces_per_s)
    sent, expected, ended = defaultdict(list), defaultdict(list), set()
    now = 0.0
    for number, index, passed_s, ends in events:
        now += passed_s
        name = f"r{number}"
        if (name, index) in ended:
            continue
        token = len(expected[name, index])
        expected[name, index].append(token)
        finish = FinishReason.LENGTH if ends else FinishReason.NONE
        if ends:
            ended.add((name, index))
        for piece in gathering.take([a_delta(name, token, finish, index=index)], (), now):
            assert len({(delta.job.request_id, delta.index) for delta in piece}) == 1
            sent[piece[0].job.request_id, piece[0].index] += [delta.choice.token_id for delta in piece]
    for name, _ in list(expected):
        for piece in gathering.take((), [name], now):
            sent[piece[0].job.request_id, piece[0].index] += [delta.choice.token_id for delta in piece]
    assert sent == expected
    assert gathering.num_streams == 0
