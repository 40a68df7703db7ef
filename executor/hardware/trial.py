"""One run of `headrace tune`: the executor's own step loop over a loaded engine, with streams that are always full.

As `headrace bench saturate` does, without the services around it: as many requests as there are streams, a new one for
each that ends, all prompts and answers of one length. Counted are tokens that came within a window, after the first
prompts are through.
"""

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import EngineFault, HeadraceError
from headrace.core.request import QosClass, Sampling
from headrace.executor.engines.protocol import Engine
from headrace.executor.hardware.search import Setting
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.worker import Worker

LONGEST_RUN_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` requests at once of `prompt_tokens` and `answer_tokens`, counted for `seconds`; `inter_token_s` by
    class number, as the executor's settings have it."""

    streams: int
    prompt_tokens: int
    answer_tokens: int
    seconds: float
    inter_token_s: Mapping[int, float]
    seed: int = 0


class _Counting:
    """Takes what the loop delivers; the loop's thread calls it."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.worker: Worker | None = None
        self.done = threading.Event()
        self.error: Exception | None = None
        self._begun: set[str] = set()
        self._most_running = 0
        self._since = 0.0
        self._num_tokens = 0
        self.tokens_per_s = 0.0

    def deliver(self, result: StepResult) -> None:
        now = time.perf_counter()
        for delta in result.deltas:
            if delta.error is not None:
                self._stop(delta.error)
                return
            if delta.choice is not None:
                self._begun.add(delta.job.request_id)
        tokens = sum(delta.choice is not None for delta in result.deltas)
        if self._since:
            self._num_tokens += tokens
            if now - self._since >= self.load.seconds:
                self.tokens_per_s = self._num_tokens / (now - self._since)
                self.done.set()
        elif len(self._begun) >= self._most_running:
            self._since = now
        if not self.done.is_set() and self.worker is not None:
            for _ in result.finished:
                self.worker.submit(next(self._jobs))

    def begin(self, worker: Worker, vocab_size: int) -> None:
        self.worker = worker
        self._jobs = self._endless(vocab_size)
        self._most_running = min(self.load.streams, worker.num_slots)  # the others wait outside, as with a scheduler
        for job in itertools.islice(self._jobs, self._most_running):
            worker.submit(job)

    def failed(self, error: Exception) -> None:
        self._stop(error)

    def _stop(self, error: Exception) -> None:
        self.error = error
        self.done.set()

    def _endless(self, vocab_size: int) -> itertools.chain[Job]:
        """The same requests in each run."""
        load, random = self.load, np.random.default_rng(self.load.seed)
        sampling = Sampling(max_tokens=load.answer_tokens, ignore_eos=True)
        return itertools.chain.from_iterable(
            [
                Job(
                    1,
                    str(number),
                    random.integers(min(100, vocab_size - 1), vocab_size, load.prompt_tokens).astype(np.uint32),
                    sampling,
                    int(QosClass.NORMAL),
                )
            ]
            for number in itertools.count()
        )


def run_trial(engine: Engine, eos_token_ids: tuple[int, ...], load: Load, setting: Setting) -> float:
    """Output tokens a second. Blocks for the window and what comes before it. Raises EngineFault."""
    counting = _Counting(load)
    worker = Worker(
        engine,
        eos_token_ids,
        num_slots=setting.num_slots,
        step_tokens=setting.step_tokens,
        deliver=counting.deliver,
        failed=counting.failed,
        inter_token_s=load.inter_token_s,
    )
    with worker:
        counting.begin(worker, engine.spec.vocab_size)
        in_time = counting.done.wait(LONGEST_RUN_S)
        worker.cancel(1)
    if counting.error is not None:
        if isinstance(counting.error, HeadraceError):
            raise counting.error
        raise EngineFault(f"the trial failed: {counting.error}") from counting.error
    if not in_time:
        raise EngineFault(f"the trial took over {LONGEST_RUN_S:g} s")
    return counting.tokens_per_s
