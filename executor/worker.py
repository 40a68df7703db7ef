"""The step loop: continuous batching over one engine, in one thread of its own.

Work comes in from any thread and takes effect at the next step boundary; what a step produced goes out by one callback
a step. It knows nothing of gRPC.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.core.errors import DeviceFault, EngineFault, HeadraceError, InvalidRequest
from headrace.core.request import FinishReason
from headrace.core.step_model import StepSample
from headrace.executor.engines.protocol import Engine
from headrace.executor.event_wait import Overdue
from headrace.executor.guide import Guides
from headrace.executor.kv.blocks import BlockPool, PoolState
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.memory.engine_memory import EngineMemory
from headrace.executor.residents import Residents
from headrace.executor.sequence import Job
from headrace.executor.step_reading import Stepped, nobody
from headrace.executor.step_result import Delta, StepResult
from headrace.executor.stepper import Stepper

log = logging.getLogger(__name__)

_IDLE_S = 1.0  # how long without work until the cache shrinks to what it keeps while idle
_GUIDE_REST_S = 0.05  # how long everybody's guides are waited for before deadlines are looked at
_LONGEST_REST_S = 3_600.0  # a deadline may be further away than a thread can wait


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Counts at one moment."""

    num_running: int
    num_waiting: int
    num_slots_in_use: int
    num_blocks_in_use: int
    num_steps: int
    num_tokens: int
    memory: PoolState
    num_proposed_tokens: int = 0
    num_accepted_tokens: int = 0
    num_late_masks: int = 0


@dataclass(frozen=True, slots=True)
class _Cancel:
    session: int
    request_id: str | None


@dataclass(frozen=True, slots=True)
class _Demote:
    session: int
    request_id: str


@dataclass(frozen=True, slots=True)
class _Resume:
    request_ids: tuple[str, ...]


class Worker:
    """Runs `engine` for up to `num_slots` sequences at once, `step_tokens` new tokens a step.

    `deliver(result)` is called from the worker's thread after each turn that produced something; `failed(error)` once
    if the loop must stop; `stepped` with each step and `overdue` with each wait for the device that lasts too long,
    from that thread too. With a `cache`, prompts that begin alike are computed once; up to `speculation` tokens of an
    answer are guessed ahead; with `guides` answers may be constrained. Use as a context manager: leaving joins the
    thread and returns all memory.
    """

    def __init__(
        self,
        engine: Engine,
        eos_token_ids: tuple[int, ...],
        *,
        num_slots: int,
        step_tokens: int,
        deliver: Callable[[StepResult], None],
        failed: Callable[[Exception], None],
        cache: PrefixCache | None = None,
        inter_token_s: Mapping[int, float] | None = None,
        stepped: Stepped = nobody,
        speculation: int = 0,
        guides: Guides | None = None,
        overdue: Overdue = lambda wait: None,
    ) -> None:
        self.engine = engine
        self.num_slots = num_slots
        self.cache = cache
        self.pool = BlockPool(
            engine.spec.num_blocks,
            engine.spec.block_tokens,
            extent_blocks=engine.spec.extent_blocks,
            memory=EngineMemory(engine),
            cache=cache,
        )
        self._deliver = deliver
        self._failed = failed
        self._inbox: deque[Job | _Cancel | _Demote | _Resume] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._residents = Residents(engine.spec, self.pool, num_slots, eos_token_ids, guides)
        self._stepper = Stepper(
            engine,
            self._residents,
            self.pool,
            eos_token_ids,
            step_tokens,
            inter_token_s,
            stepped,
            speculation,
            overdue=overdue,
        )
        if guides is not None:
            guides.on_ready = self._wake.set
        self._base_blocks = self.pool.num_in_use
        self._alone = False
        self._resuming = threading.Lock()  # held while displaced requests go on, and while `alone` changes
        self._memory = self.pool.state()
        self._idle_since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    def __enter__(self) -> "Worker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._stepper.release()

    def submit(self, job: Job) -> None:
        """Takes effect at the next step boundary; a refusal comes as a Delta with an error."""
        self._inbox.append(job)
        self._wake.set()

    def cancel(self, session: int, request_id: str | None = None) -> None:
        """Ends the request, or all of the session's, at the next step boundary. Unknown ones are ignored."""
        self._inbox.append(_Cancel(session, request_id))
        self._wake.set()

    def demote(self, session: int, request_id: str) -> None:
        """The request goes on at batch priority from the next step boundary on. Unknown ones are ignored."""
        self._inbox.append(_Demote(session, request_id))
        self._wake.set()

    def resume(self, request_ids: Iterable[str]) -> None:
        """Lets displaced requests go on at the first step boundary at which there is room. Unknown ones are ignored."""
        self._inbox.append(_Resume(tuple(request_ids)))
        self._wake.set()

    def go_alone(self) -> None:
        """From now on displaced requests go on by themselves as slots allow, since nobody else can say so."""
        with self._resuming:
            self._alone = True
        self._wake.set()

    def obey(self) -> tuple[str, ...]:
        """From now on displaced requests wait for `resume` again. Returns those that do; none of them goes on by
        itself after that."""
        with self._resuming:
            self._alone = False
            return self._residents.paused_ids

    @property
    def paused_ids(self) -> tuple[str, ...]:
        """The requests that are displaced now."""
        return self._residents.paused_ids

    def take_samples(self) -> list[StepSample]:
        """Some of the steps since the last call, the newest."""
        return self._stepper.take_samples()

    def status(self) -> WorkerStatus:
        residents = self._residents
        return WorkerStatus(
            num_running=residents.num_requests,
            num_waiting=len(self._inbox),
            num_slots_in_use=len(residents.running),
            num_blocks_in_use=self.pool.num_in_use - self._base_blocks,
            num_steps=self._stepper.num_steps,
            num_tokens=self._stepper.num_tokens,
            memory=self._memory,
            num_proposed_tokens=self._stepper.speculator.num_proposed,
            num_accepted_tokens=self._stepper.speculator.num_accepted,
            num_late_masks=self._stepper.num_late_masks,
        )

    def _run(self) -> None:
        result, residents = StepResult(), self._residents
        try:
            while not self._stopping:
                result = StepResult()
                self._take_inbox(result)
                residents.miss_deadlines(time.monotonic(), result)
                if result.started and residents.running:
                    self._deliver(result)  # before a step that may take long
                    result = StepResult()
                stepped = bool(residents.running) and self._stepper.step(result)
                if stepped:
                    self._idle_since = time.monotonic()
                    self.pool.give_back(self._idle_since)
                self._memory = self.pool.state()
                if not result.empty:
                    self._deliver(result)
                if not residents.running and not self._inbox:
                    self._rest()
                elif residents.running and not stepped:
                    self._wake.wait(_GUIDE_REST_S)
                    self._wake.clear()
        except Exception as error:
            self._stop(error, result)
        finally:
            residents.release()

    def _stop(self, error: Exception, result: StepResult) -> None:
        """The loop cannot go on: whoever is in it or waits for it is told, after what `result` has already."""
        incident = secrets.token_hex(6)
        log.error("the step loop stops, incident %s", incident, exc_info=error)
        fault: HeadraceError = EngineFault(f"the executor stops, incident {incident}")
        if isinstance(error, DeviceFault):  # the requests are not at fault: they may go on elsewhere
            fault = DeviceFault(f"{error.message}, incident {incident}")
        for sequence in (*self._residents.running, *self._residents.paused):
            sequence.finish = FinishReason.FAULT
            result.deltas.append(Delta(sequence.job, sequence.index, error=fault, sequence=sequence))
        self._residents.remove_finished(result)
        for message in self._inbox:
            if isinstance(message, Job):
                result.deltas.append(Delta(message, 0, error=fault))
                result.leave(message.request_id)
        self._inbox.clear()
        self._deliver(result)
        self._failed(error)

    def _rest(self) -> None:
        now = time.monotonic()
        waits_s = [deadline - now for deadline in self._residents.paused_deadlines()]
        until_idle_s = self._idle_since + _IDLE_S - now
        give_back_s = self.pool.give_back(now, idle=until_idle_s <= 0)
        self._memory = self.pool.state()
        if give_back_s is not None:
            waits_s.append(give_back_s)
        if until_idle_s > 0:
            waits_s.append(until_idle_s)
        self._wake.wait(max(0.0, min(*waits_s, _LONGEST_REST_S)) if waits_s else None)
        self._wake.clear()

    def _take_inbox(self, result: StepResult) -> None:
        residents = self._residents
        while self._inbox:
            match self._inbox.popleft():
                case Job() as job:
                    self._accept(job, result)
                case _Cancel(session, request_id):
                    residents.cancel(session, request_id, result)
                case _Demote(session, request_id):
                    residents.demote(session, request_id)
                case _Resume(request_ids):
                    for request_id in request_ids:
                        residents.resume(request_id)
        if residents.paused:
            with self._resuming:
                residents.take_up(everybody=self._alone)

    def _accept(self, job: Job, result: StepResult) -> None:
        try:
            self._residents.accept(job)
        except HeadraceError as error:
            result.deltas.append(Delta(job, 0, error=error))
            if not isinstance(error, InvalidRequest) or error.field != "request_id":
                result.leave(job.request_id)
        else:
            result.started.append(job.request_id)
