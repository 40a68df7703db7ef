"""Batches come together from several sessions; who is late runs alone, who leaves delays nobody."""

import numpy as np

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.executor.encoding.gathering import Gathering
from headrace.executor.encoding.lengths import padded_length
from headrace.executor.encoding.task import Pooling, Task


def task(name: str, batch_id: str = "b", batch_size: int = 2, session: int = 1, num_tokens: int = 3) -> Task:
    return Task(
        session=session,
        request_id=name,
        token_ids=np.arange(num_tokens, dtype=np.uint32),
        first_tokens=num_tokens,
        batch_id=batch_id,
        batch_size=batch_size,
        row_tokens=0,
        scores=False,
        pooling=Pooling.MEAN,
        normalize=True,
        dimensions=0,
        deadline=None,
        trace=TraceContext(),
        batch_trace=TraceContext(),
        received_ns=0,
    )


def names(tasks):
    return None if tasks is None else [each.request_id for each in tasks]


def test_a_batch_is_due_once_all_its_members_are_there():
    gathering = Gathering(straggler_s=1)
    gathering.add(task("one"), 0)
    assert gathering.take(0.5) is None
    assert gathering.wait_s(0.5) == 0.5
    gathering.add(task("two", session=2), 0.5)
    assert gathering.wait_s(0.5) == 0
    assert names(gathering.take(0.5)) == ["one", "two"]
    assert gathering.take(0.5) is None
    assert gathering.wait_s(0.5) is None
    assert len(gathering) == 0


def test_a_late_member_is_not_waited_for_and_does_not_wait():
    gathering = Gathering(straggler_s=1)
    gathering.add(task("one", batch_size=3), 0)
    assert names(gathering.take(1)) == ["one"]
    gathering.add(task("two", batch_size=3), 1.1)
    assert names(gathering.take(1.1)) == ["two"]
    gathering.add(task("three", batch_size=3), 9)
    assert names(gathering.take(9)) == ["three"]


def test_members_that_leave_are_gone_by_request_or_with_their_session():
    gathering = Gathering(straggler_s=1)
    gathering.add(task("one", batch_size=4), 0)
    gathering.add(task("two", batch_size=4, session=2), 0)
    gathering.add(task("three", batch_size=4, session=2), 0)
    assert names(gathering.remove(1, "two")) == []
    assert names(gathering.remove(1, "one")) == ["one"]
    assert names(gathering.remove(2, None)) == ["two", "three"]
    assert gathering.take(5) is None
    assert gathering.wait_s(5) is None


def test_a_batch_of_one_does_not_wait():
    gathering = Gathering(straggler_s=1)
    gathering.add(task("one", batch_size=1), 0)
    assert names(gathering.take(0)) == ["one"]


def test_the_batch_that_was_due_first_goes_first():
    gathering = Gathering(straggler_s=1)
    gathering.add(task("one", "a"), 0)
    gathering.add(task("two", "b"), 0.1)
    gathering.add(task("three", "b"), 0.2)
    assert names(gathering.take(2)) == ["two", "three"]
    assert names(gathering.take(2)) == ["one"]


def test_a_texts_own_length_decides_how_long_it_is_padded():
    assert [padded_length(tokens, 256) for tokens in (1, 8, 9, 17, 64, 65, 97, 250)] == [8, 8, 16, 24, 64, 80, 112, 256]
    assert padded_length(99, 100) == 100
