"""Displacing, resuming, cancelling and losing over random histories of the reference engine: nothing leaks."""

import threading
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.model import ModelInfo
from headrace.core.request import Sampling
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))
NAMES = [f"r{i}" for i in range(5)]

actions = st.one_of(
    st.tuples(
        st.just("submit"),
        st.sampled_from(NAMES),
        st.integers(1, 60),
        st.integers(1, 20),
        st.integers(1, 3),
        st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=3),
    ),
    st.tuples(st.just("cancel"), st.sampled_from(NAMES)),
    st.tuples(st.just("resume"), st.lists(st.sampled_from(NAMES), max_size=3)),
    st.tuples(st.just("alone"), st.booleans()),
    st.tuples(st.just("wait")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(actions, max_size=25))
def test_nothing_leaks(history: list[Any]) -> None:
    moved = threading.Event()
    open_ids: set[str] = set()
    most = 0

    def deliver(result: StepResult) -> None:
        nonlocal most
        most = max(most, worker.status().num_slots_in_use)
        open_ids.update(result.started)
        open_ids.difference_update(result.finished)
        assert len(result.finished) == len(result.output_tokens)
        moved.set()

    def failed(error: Exception) -> None:
        raise error

    worker = Worker(ReferenceEngine(INFO, 48), (256,), num_slots=4, step_tokens=24, deliver=deliver, failed=failed)
    with worker:
        for action in history:
            match action:
                case ("submit", name, prompt, tokens, n, displaced):
                    ids = np.full(prompt, 65, np.uint32)
                    sampling = Sampling(max_tokens=tokens, n=n, ignore_eos=True)
                    worker.submit(Job(1, name, ids, sampling, displaced=tuple(displaced)))
                case ("cancel", name):
                    worker.cancel(1, name)
                case ("resume", names):
                    worker.resume(names)
                case ("alone", alone):
                    worker.alone = alone
                case _:
                    moved.wait(0.01)
                    moved.clear()
        worker.cancel(1)
        for _ in range(2000):
            if not (worker.status().num_running or worker.status().num_waiting):
                break
            moved.wait(0.01)
            moved.clear()
        status = worker.status()
        assert (status.num_running, status.num_slots_in_use, status.num_blocks_in_use) == (0, 0, 0)
        assert worker.paused_ids == ()
    assert not open_ids
    assert most <= 4
    worker.pool.check()
    assert worker.pool.num_in_use == worker.pool.num_reserved == 0
