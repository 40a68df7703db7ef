"""The encode loop in its thread: who leaves, who is late, and what an engine's failure does."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headrace.api.types.v1.types_pb2 import TraceContext
from headrace.core.errors import Cancelled, DeadlineMissed, EngineFault, InvalidRequest
from headrace.core.request import Precision
from headrace.executor.encoding.task import Done, Pooling, Task
from headrace.executor.encoding.worker import EncodeWorker
from headrace.executor.engines.encoder import EncoderSpec, Int64
from headrace.executor.engines.protocol import Float32

WAIT_S = 20


class Sums:
    """An encoder whose hidden states are the token ids themselves; it can be made to wait or to fail."""

    spec = EncoderSpec("sums", Precision.FP32, context_tokens=64, vocab_size=100, output_size=2, has_head=False)

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.breaks = False
        self.breaks_at = 0  # rows of this length

    def forward(self, token_ids: Int64, token_types: Int64, segments: Int64, positions: Int64) -> Float32:
        self.shapes.append(token_ids.shape)
        self.entered.set()
        assert self.go.wait(WAIT_S)
        if self.breaks or token_ids.shape[1] == self.breaks_at:
            raise EngineFault("broken on purpose")
        return np.stack([token_ids, token_types], axis=2).astype(np.float32)

    def close(self) -> None: ...


class Bench:
    """A worker over `Sums`, and all that came out of it."""

    def __init__(self, straggler_s: float = 0.01, batch_rows: int = 4) -> None:
        self.encoder = Sums()
        self.dones: list[Done] = []
        self._news: list[Done] = []
        self.failures: list[Exception] = []
        self._changed = threading.Condition()
        self.worker = EncodeWorker(
            self.encoder, batch_rows=batch_rows, straggler_s=straggler_s, deliver=self._deliver, failed=self._fail
        )

    def _deliver(self, dones: Sequence[Done]) -> None:
        with self._changed:
            self.dones += dones
            self._news += dones
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def until(self, num_dones: int, num_failures: int = 0) -> dict[str, Done]:
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.dones) >= num_dones and len(self.failures) >= num_failures, WAIT_S
            )
        return {done.task.request_id: done for done in self.dones}

    def until_told(self, name: str) -> Done:
        """Waits for the text and forgets that it was told, so that the name can come again."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(done.task.request_id == name for done in self._news), WAIT_S)
            done = next(done for done in self._news if done.task.request_id == name)
            self._news.remove(done)
            return done


def task(name: str, token_ids: Sequence[int] = (1, 2, 3), batch_id: str = "b", batch_size: int = 1) -> Task:
    return Task(
        session=1,
        request_id=name,
        token_ids=np.array(token_ids, np.uint32),
        first_tokens=len(token_ids),
        batch_id=batch_id,
        batch_size=batch_size,
        row_tokens=0,
        scores=False,
        pooling=Pooling.MEAN,
        normalize=False,
        dimensions=0,
        deadline=None,
        trace=TraceContext(),
        batch_trace=TraceContext(),
        received_ns=0,
    )


def test_one_forward_for_each_padded_length_and_no_more_rows_than_it_may_have():
    bench = Bench(straggler_s=WAIT_S)
    with bench.worker as worker:
        for number in range(6):
            worker.submit(task(f"short{number}", [number] * 5, batch_size=7))
        worker.submit(task("long", [9] * 20, batch_size=7))
        dones = bench.until(7)
        samples = worker.take_samples()
    assert bench.encoder.shapes == [(4, 8), (2, 8), (1, 24)]
    assert [sample.prefill_tokens for sample in samples] == [32, 16, 24]
    for number in range(6):
        assert dones[f"short{number}"].values.tolist() == [number, 0]
    assert dones["long"].padded_tokens == 24
    batch = dones["long"].batch
    assert (batch.num_texts, batch.num_tokens, batch.padding_tokens) == (7, 50, 6 * 3 + 4)


def test_tokens_of_the_second_text_are_of_type_one():
    bench = Bench()
    with bench.worker as worker:
        worker.submit(replace(task("pair", [1, 2, 3, 4]), first_tokens=1))
        assert bench.until(1)["pair"].values.tolist() == [2.5, 0.75]


def test_a_batch_whose_member_never_comes_runs_without_it():
    bench = Bench(straggler_s=0.01)
    with bench.worker as worker:
        worker.submit(task("here", batch_size=2))
        assert bench.until(1)["here"].error is None
        worker.submit(task("late", batch_size=2))
        assert bench.until(2)["late"].error is None
        assert worker.status().num_running == 0


def test_a_cancelled_text_leaves_and_its_batch_goes_on():
    bench = Bench(straggler_s=WAIT_S)
    with bench.worker as worker:
        worker.submit(task("gone", batch_size=3))
        worker.cancel(1, "gone")
        assert isinstance(bench.until(1)["gone"].error, Cancelled)
        for name in ("one", "two", "three"):
            worker.submit(task(name, batch_size=3))
        dones = bench.until(4)
    assert [dones[name].error for name in ("one", "two", "three")] == [None] * 3


def test_a_text_whose_deadline_has_passed_is_not_computed():
    bench = Bench()
    with bench.worker as worker:
        worker.submit(replace(task("late", batch_size=2), deadline=time.monotonic() - 1))
        worker.submit(task("well", batch_size=2))
        dones = bench.until(2)
    assert isinstance(dones["late"].error, DeadlineMissed)
    assert dones["well"].error is None
    assert bench.encoder.shapes == [(1, 8)]


def test_a_forward_that_fails_fails_its_texts_only_and_the_loop_goes_on():
    bench = Bench()
    with bench.worker as worker:
        for _ in range(4):  # never three in a row
            bench.encoder.breaks = True
            for name in ("one", "two"):
                worker.submit(task(name))
                bench.until_told(name)
            bench.encoder.breaks = False
            worker.submit(task("well"))
            assert bench.until_told("well").error is None
        assert worker.status().num_running == 0
    assert [type(done.error) for done in bench.dones] == [EngineFault, EngineFault, type(None)] * 4
    assert not bench.failures


def test_of_a_batch_the_forward_that_fails_takes_no_other_with_it():
    bench = Bench(straggler_s=WAIT_S)
    bench.encoder.breaks_at = 24
    with bench.worker as worker:
        worker.submit(task("short", batch_size=2))
        worker.submit(task("long", [9] * 20, batch_size=2))
        dones = bench.until(2)
    assert dones["short"].error is None
    assert isinstance(dones["long"].error, EngineFault)
    assert dones["short"].batch is not None
    assert dones["short"].batch.num_texts == 1


def test_an_engine_that_fails_three_times_in_a_row_stops_the_loop_and_all_are_told():
    bench = Bench(straggler_s=WAIT_S)
    bench.encoder.breaks = True
    with bench.worker as worker:
        for name in ("first", "second"):
            worker.submit(task(name))
            bench.until_told(name)
        bench.encoder.entered.clear()
        bench.encoder.go.clear()
        worker.submit(task("running"))
        assert bench.encoder.entered.wait(WAIT_S)
        worker.submit(task("gathering", batch_id="c", batch_size=2))
        bench.encoder.go.set()
        dones = bench.until(4, num_failures=1)
        with pytest.raises(EngineFault):
            worker.submit(task("after"))
        assert worker.status().num_running == 0
    assert {type(done.error) for done in dones.values()} == {EngineFault}
    assert dones.keys() == {"first", "second", "running", "gathering"}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (task("empty", []), "texts"),
        (task("long", [1] * 65), "texts"),
        (task("unknown", [100]), "tokens"),
        (replace(task("scores"), scores=True), "model"),
        (replace(task("wide"), dimensions=3), "dimensions"),
    ],
)
def test_what_the_encoder_cannot_do_is_refused_at_once(wrong, field):
    with pytest.raises(InvalidRequest) as refused:
        Bench().worker.submit(wrong)
    assert refused.value.field == field
