"""A deadline that is further away than a thread can wait."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from headrace.core.model import ModelInfo
from headrace.core.request import FinishReason, Sampling
from headrace.executor import worker as worker_module
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.sequence import Job
from headrace.executor.step_result import Delta, StepResult
from headrace.executor.worker import Worker

PATIENCE_S = 60
INFO = ModelInfo("m", "decoder", "d", context_tokens=64, vocab_size=300, eos_token_ids=(256,))


class Heard:
    """What a worker has delivered."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self._changed = threading.Condition()

    def deliver(self, result: StepResult) -> None:
        with self._changed:
            self.deltas += result.deltas
            self._changed.notify_all()

    def end_of(self, request_id: str) -> Delta:
        def ends() -> list[Delta]:
            return [d for d in self.deltas if d.job.request_id == request_id and (d.finish or d.error)]

        with self._changed:
            assert self._changed.wait_for(lambda: bool(ends()), PATIENCE_S)
            return ends()[0]


def job(request_id: str, **fields: object) -> Job:
    sampling = Sampling(max_tokens=56, ignore_eos=True)
    return Job(1, request_id, np.array([72, 105], np.uint32), sampling, **fields)  # type: ignore[arg-type]


def test_a_displaced_request_with_a_far_deadline_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_IDLE_S", 0.0)
    heard, resting = Heard(), threading.Event()
    failed: list[Exception] = []
    engine = ReferenceEngine(INFO, 64)
    with Worker(engine, (256,), num_slots=4, step_tokens=16, deliver=heard.deliver, failed=failed.append) as worker:
        wait: Callable[[float | None], bool] = worker._wake.wait

        def rest(timeout: float | None = None) -> bool:
            if timeout is not None and timeout > 1000:
                resting.set()
            return wait(timeout)

        monkeypatch.setattr(worker._wake, "wait", rest)
        worker.submit(job("far", deadline=2.0**64 / 1000, displaced=()))
        worker.submit(job("urgent", displaced=(("far", False),)))
        heard.end_of("urgent")
        assert resting.wait(PATIENCE_S)
        worker.cancel(1, "far")
        end = heard.end_of("far")
        assert end.error is None
        assert end.finish is FinishReason.CANCELLED
    assert not failed
