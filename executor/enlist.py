"""Membership: one long-lived stream to the scheduler, enlisting again whenever it breaks."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol

import grpc

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from headrace.core.step_model import StepSample
from headrace.executor.kv.prefix_cache import PrefixCache

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 2.0
_FIRST_LEASE_S = 3.0
_HEARD_S = 1.0  # how long a leaving executor waits for the scheduler to hear of it
_MOST_PREFIXES = 2048  # of one report
_UNDER_WAY_S = 0.1  # and then for starts of placements that were under way


class Load(Protocol):
    """Counts of what runs, for the heartbeat."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_blocks_in_use(self) -> int: ...

    @property
    def num_steps(self) -> int: ...


class Reported(Protocol):
    """The worker that is reported of: see executor/worker.py for the meaning of each."""

    @property
    def cache(self) -> PrefixCache | None: ...

    @property
    def paused_ids(self) -> tuple[str, ...]: ...

    def status(self) -> Load: ...

    def take_samples(self) -> Sequence[StepSample]: ...

    def resume(self, request_ids: Iterable[str]) -> None: ...

    def go_alone(self) -> None: ...

    def obey(self) -> tuple[str, ...]: ...


class _Reports:
    """What one stream has still to say. A broken stream keeps its own: its writer may yet wake, and must take nothing
    from the next."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self.output_tokens: list[int] = []  # beside `finished`
        self.wake = asyncio.Event()


class EnlistLink:
    """`enlistment()` describes the executor afresh at each try; `worker()` runs what is reported."""

    def __init__(
        self, channel: grpc.aio.Channel, enlistment: Callable[[], pb.Enlistment], worker: Callable[[], Reported]
    ) -> None:
        self._stub = SchedulerServiceStub(channel)
        self._enlistment = enlistment
        self._worker = worker
        self._running: set[str] = set()
        self._reports = _Reports()
        self._lease_s = _FIRST_LEASE_S
        self.enlisted = asyncio.Event()
        self.idle = asyncio.Event()  # nothing runs here
        self.idle.set()
        self.draining = False
        self._told = False  # a report has gone out that says so
        self._heard = asyncio.Event()

    def report(self, started: list[str], finished: list[str], output_tokens: list[int] | None = None) -> None:
        """Goes out with the next frame, at once. A request that starts and finishes in one turn is in both lists.

        `output_tokens` stand beside `finished`; none were made where they are left out.
        """
        self._reports.started += started
        self._reports.finished += finished
        self._reports.output_tokens += output_tokens or [0] * len(finished)
        self._running.update(started)
        self._running.difference_update(finished)
        if self._running:
            self.idle.clear()
        else:
            self.idle.set()
        self._reports.wake.set()

    async def drain(self) -> None:
        """Tells the scheduler to place nothing more here, and waits until it has heard, if it does so soon."""
        self.draining = True
        self._reports.wake.set()
        if self.enlisted.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARD_S):
                    await self._heard.wait()
            await asyncio.sleep(_UNDER_WAY_S)

    async def run(self) -> None:
        """Keeps the executor enlisted until cancelled."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                async for response in self._stub.Enlist(self._frames()):
                    if response.lease_ms:
                        self._lease_s = response.lease_ms / 1000
                    if response.resumed_request_ids:
                        self._worker().resume(response.resumed_request_ids)
                    if self._told:
                        self._heard.set()
                    if not self.enlisted.is_set():
                        log.info("enlisted, lease %.1f s", self._lease_s)
                        self.enlisted.set()
                    backoff_s = _FIRST_BACKOFF_S
            except grpc.aio.AioRpcError as error:
                if self.enlisted.is_set() or backoff_s == _FIRST_BACKOFF_S:
                    log.warning("scheduler unreachable (%s), enlisting again", error.code().name)
            self.enlisted.clear()
            self._worker().go_alone()
            await asyncio.sleep(backoff_s)
            backoff_s = min(_LONGEST_BACKOFF_S, backoff_s * 2)

    async def _frames(self) -> AsyncIterator[pb.EnlistRequest]:
        enlistment = self._enlistment()
        enlistment.running_request_ids.extend(self._running)
        # one that has started a moment ago is not among the running yet: the next report has it
        enlistment.paused_request_ids.extend(each for each in self._worker().obey() if each in self._running)
        enlistment.draining = self._told = self.draining
        reports = self._reports = _Reports()  # the enlistment says all that was before
        if cache := self._worker().cache:
            cache.tell_again()
        yield pb.EnlistRequest(enlistment=enlistment)
        while True:
            with contextlib.suppress(TimeoutError):  # then it is a heartbeat
                async with asyncio.timeout(self._lease_s / 3):
                    await reports.wake.wait()
            reports.wake.clear()
            started, reports.started = reports.started, []
            finished, reports.finished = reports.finished, []
            output_tokens, reports.output_tokens = reports.output_tokens, []
            worker = self._worker()
            status = worker.status()
            added, removed = worker.cache.take_events(_MOST_PREFIXES) if worker.cache else ((), ())
            yield pb.EnlistRequest(
                report=pb.ExecutorReport(
                    started_request_ids=started,
                    finished_request_ids=finished,
                    finished_output_tokens=output_tokens,
                    paused_request_ids=worker.paused_ids,
                    num_running=status.num_running,
                    num_blocks_in_use=status.num_blocks_in_use,
                    num_steps=status.num_steps,
                    draining=self.draining,
                    added_prefix_hashes=added,
                    removed_prefix_hashes=removed,
                    steps=[
                        pb.StepSample(
                            num_decodes=sample.num_decodes,
                            prefill_tokens=sample.prefill_tokens,
                            duration_us=round(sample.duration_s * 1e6),
                        )
                        for sample in worker.take_samples()
                    ],
                )
            )
            self._told = self.draining
