"""The step loop by itself: what happens when something under it breaks."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from headrace.core.errors import EngineFault
from headrace.core.model import ModelInfo
from headrace.core.request import Sampling
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.sequence import Job
from headrace.executor.worker import Worker

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))


class BrokenOutput:
    """A step's output that cannot be read."""

    @property
    def best(self):
        raise RuntimeError("the output is gone")


class Engine:
    """The reference engine; from step `breaks_at` on, `failing` takes the place of its forward."""

    def __init__(self, breaks_at, failing):
        self._engine = ReferenceEngine(INFO, 1024)
        self.spec = self._engine.spec
        self._steps_left = breaks_at
        self._failing = failing

    def forward(self, plan):
        self._steps_left -= 1
        return self._failing() if self._steps_left < 0 else self._engine.forward(plan)

    def __getattr__(self, name):
        return getattr(self._engine, name)


def raises():
    raise RuntimeError("the device is gone")


@pytest.mark.parametrize("failing", [raises, BrokenOutput])
def test_a_loop_that_stops_leaves_nobody_waiting(failing):
    results, stopped, errors = [], threading.Event(), []

    def failed(error):
        errors.append(error)
        stopped.set()

    worker = Worker(Engine(3, failing), (256,), num_slots=8, step_tokens=16, deliver=results.append, failed=failed)
    job = Job(1, "0", np.array([65, 66], np.uint32), Sampling(max_tokens=100))
    with worker:
        # more prompt than a few steps take in: some are waiting for their prefill when the loop stops
        jobs = [replace(job, request_id=str(n), prompt_ids=np.full(30, 65, np.uint32)) for n in range(8)]
        for each in jobs:
            worker.submit(each)
        assert stopped.wait(30)
        worker.submit(replace(job, request_id="too late"))
        worker.cancel(1)
    faults = {
        delta.job.request_id: delta.error for result in results for delta in result.deltas if delta.error is not None
    }
    finished = [request_id for result in results for request_id in result.finished]
    assert set(faults) >= {each.request_id for each in jobs}
    assert all(isinstance(error, EngineFault) for error in faults.values())
    assert sorted(finished) == sorted(each.request_id for each in jobs)
    assert len(errors) == 1
    assert worker.pool.num_in_use == 0
    assert worker.pool.num_reserved == 0
