"""A demoted request at the executor: batch priority from the next step boundary on, whatever it does then."""

import threading

import numpy as np

from headrace.core.model import ModelInfo
from headrace.core.request import QosClass, Sampling
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))


def job(session: int, request_id: str, n: int = 1) -> Job:
    prompt = np.full(6, 65, np.uint32)
    return Job(session, request_id, prompt, Sampling(max_tokens=4, n=n), priority=QosClass.REALTIME)


def test_all_answers_of_the_one_request_are_demoted() -> None:
    results, finished = list[StepResult](), threading.Semaphore(0)

    def deliver(result: StepResult) -> None:
        results.append(result)
        for _ in result.finished:
            finished.release()

    worker = Worker(
        ReferenceEngine(INFO, 1024),
        (256,),
        num_slots=8,
        step_tokens=64,
        deliver=deliver,
        failed=lambda error: None,
    )
    # before the thread starts, all of it is in the inbox: it is taken in at one step boundary, in this order
    worker.submit(job(1, "a", n=2))
    worker.submit(job(2, "a"))
    worker.submit(job(1, "b"))
    worker.demote(1, "a")
    worker.demote(1, "unknown")
    with worker:
        for _ in range(3):
            assert finished.acquire(timeout=30)
    priorities = {
        (delta.job.session, delta.job.request_id, delta.index): delta.job.priority
        for result in results
        for delta in result.deltas
    }
    assert priorities == {
        (1, "a", 0): QosClass.BATCH,
        (1, "a", 1): QosClass.BATCH,
        (2, "a", 0): QosClass.REALTIME,
        (1, "b", 0): QosClass.REALTIME,
    }
