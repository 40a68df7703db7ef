"""Membership: one long-lived stream to the scheduler, enlisting again whenever it breaks."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import grpc

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from headrace.executor.worker import WorkerStatus

log = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 2.0
_FIRST_LEASE_S = 3.0


class _Reports:
    """What one stream has still to say. A broken stream keeps its own: its writer may yet wake, and must take nothing
    from the next."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self.wake = asyncio.Event()


class EnlistLink:
    """`enlistment()` describes the executor afresh at each try; `status()` gives the counts of a report."""

    def __init__(
        self, channel: grpc.aio.Channel, enlistment: Callable[[], pb.Enlistment], status: Callable[[], WorkerStatus]
    ) -> None:
        self._stub = SchedulerServiceStub(channel)
        self._enlistment = enlistment
        self._status = status
        self._running: set[str] = set()
        self._reports = _Reports()
        self._lease_s = _FIRST_LEASE_S
        self.enlisted = asyncio.Event()
        self.idle = asyncio.Event()  # nothing runs here
        self.idle.set()
        self.draining = False

    def report(self, started: list[str], finished: list[str]) -> None:
        """Goes out with the next frame, at once. A request that starts and finishes in one turn is in both lists."""
        self._reports.started += started
        self._reports.finished += finished
        self._running.update(started)
        self._running.difference_update(finished)
        if self._running:
            self.idle.clear()
        else:
            self.idle.set()
        self._reports.wake.set()

    def drain(self) -> None:
        """Tells the scheduler to place nothing more here."""
        self.draining = True
        self._reports.wake.set()

    async def run(self) -> None:
        """Keeps the executor enlisted until cancelled."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                async for response in self._stub.Enlist(self._frames()):
                    self._lease_s = response.lease_ms / 1000
                    if not self.enlisted.is_set():
                        log.info("enlisted, lease %.1f s", self._lease_s)
                        self.enlisted.set()
                    backoff_s = _FIRST_BACKOFF_S
            except grpc.aio.AioRpcError as error:
                if self.enlisted.is_set() or backoff_s == _FIRST_BACKOFF_S:
                    log.warning("scheduler unreachable (%s), enlisting again", error.code().name)
            self.enlisted.clear()
            await asyncio.sleep(backoff_s)
            backoff_s = min(_LONGEST_BACKOFF_S, backoff_s * 2)

    async def _frames(self) -> AsyncIterator[pb.EnlistRequest]:
        enlistment = self._enlistment()
        enlistment.running_request_ids.extend(self._running)
        reports = self._reports = _Reports()  # the enlistment says all that was before
        yield pb.EnlistRequest(enlistment=enlistment)
        while True:
            with contextlib.suppress(TimeoutError):  # then it is a heartbeat
                async with asyncio.timeout(self._lease_s / 3):
                    await reports.wake.wait()
            reports.wake.clear()
            started, reports.started = reports.started, []
            finished, reports.finished = reports.finished, []
            status = self._status()
            yield pb.EnlistRequest(
                report=pb.ExecutorReport(
                    started_request_ids=started,
                    finished_request_ids=finished,
                    num_running=status.num_running,
                    num_blocks_in_use=status.num_blocks_in_use,
                    num_steps=status.num_steps,
                    draining=self.draining,
                )
            )
