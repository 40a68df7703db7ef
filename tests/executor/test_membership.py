"""What an executor tells the scheduler, and when: starts, ends, steps, who is displaced, that it leaves."""

import asyncio
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1 import scheduler_pb2_grpc
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.core.model import ModelInfo
from headrace.core.request import Sampling
from headrace.executor.engines.reference import ReferenceEngine, expected_answer
from headrace.executor.enlist import EnlistLink
from headrace.executor.sequence import Job
from headrace.executor.worker import Worker

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))
TRANSPORT = TransportSettings(drain_s=0.2)
PROMPT = [72, 101, 108, 108, 111]


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Keeps the frames in order, renews every lease, says what is put in `answers`; `hang_up` ends a stream once."""

    def __init__(self):
        self.frames = []
        self.closed = False  # to every stream
        self.answers = asyncio.Queue()
        self.hang_up = asyncio.Event()
        self.changed = asyncio.Condition()

    async def Enlist(self, request_iterator, context):
        if self.closed:
            return

        async def read():
            async for frame in request_iterator:
                self.frames.append(frame)
                await context.write(pb.EnlistResponse(lease_ms=60_000))
                async with self.changed:
                    self.changed.notify_all()

        async def say():
            while True:
                await context.write(await self.answers.get())

        tasks = [asyncio.create_task(each) for each in (read(), say(), self.hang_up.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.hang_up.clear()
        for task in tasks:
            task.cancel()

    @property
    def enlistments(self):
        return [frame.enlistment for frame in self.frames if frame.HasField("enlistment")]

    @property
    def reports(self):
        return [frame.report for frame in self.frames if frame.HasField("report")]

    async def until(self, condition):
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(condition)


class GatedEngine(ReferenceEngine):
    """No step begins before it is let through."""

    def __init__(self):
        super().__init__(INFO, 256)
        self.gate = threading.Semaphore(0)
        self.inside = threading.Event()
        self.open = False

    def forward(self, plan):
        self.inside.set()
        if not self.open:
            assert self.gate.acquire(timeout=30)
        return super().forward(plan)

    def let_through(self):
        self.open = True
        self.gate.release()


@asynccontextmanager
async def member(engine, num_slots=1):
    """A worker with its link to a scheduler of its own; tokens by request are collected."""
    scheduler, loop, tokens = Scheduler(), asyncio.get_running_loop(), {}

    def distribute(result):
        for delta in result.deltas:
            if delta.choice is not None:
                tokens.setdefault(delta.job.request_id, []).append(delta.choice.token_id)
        if result.started or result.finished:
            link.report(result.started, result.finished, result.output_tokens)

    def deliver(result):
        loop.call_soon_threadsafe(distribute, result)

    def failed(error):
        raise error

    async with (
        serve(
            "127.0.0.1:0",
            TRANSPORT,
            lambda server: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server),
            ["headrace.scheduler.v1.SchedulerService"],
        ) as handle,
        open_channel(handle.address, TRANSPORT) as channel,
    ):
        worker = Worker(engine, (256,), num_slots=num_slots, step_tokens=64, deliver=deliver, failed=failed)
        link = EnlistLink(channel, lambda: pb.Enlistment(executor_id="e"), lambda: worker)
        with worker:
            task = asyncio.create_task(link.run())
            await scheduler.until(lambda: scheduler.enlistments)
            try:
                yield worker, link, scheduler, tokens
            finally:
                if isinstance(engine, GatedEngine):
                    engine.let_through()
                scheduler.hang_up.set()
                task.cancel()
                await asyncio.wait([task])


def job(request_id, max_tokens=4, **settings):
    displaced = settings.pop("displaced", ())
    sampling = Sampling(max_tokens=max_tokens, **settings)
    return Job(1, request_id, np.array(PROMPT, np.uint32), sampling, displaced=displaced)


def named(reports, field):
    return [each for report in reports for each in getattr(report, field)]


async def test_a_start_is_told_before_its_first_step_ends():
    engine = GatedEngine()
    async with member(engine) as (worker, _, scheduler, tokens):
        worker.submit(job("slow"))
        await scheduler.until(lambda: "slow" in named(scheduler.reports, "started_request_ids"))
        assert await asyncio.to_thread(engine.inside.wait, 20)
        assert not tokens
        engine.let_through()
        await scheduler.until(lambda: "slow" in named(scheduler.reports, "finished_request_ids"))


async def test_ends_carry_their_tokens_and_frames_the_newest_steps():
    # steps that take a moment, so that the frame that tells of the start is out before the last ones
    async with member(ReferenceEngine(INFO, 256, step_delay_s=0.01), num_slots=4) as (worker, _, scheduler, _):
        worker.submit(job("many", 20, n=3, temperature=1.0, ignore_eos=True))
        await scheduler.until(lambda: "many" in named(scheduler.reports, "finished_request_ids"))
        (end,) = [report for report in scheduler.reports if report.finished_request_ids]
        assert list(end.finished_output_tokens) == [60]
        assert all(len(report.steps) <= 8 for report in scheduler.reports)
        assert [step.num_decodes for step in end.steps] == [3] * 8
        assert [step.prefill_tokens for step in end.steps] == [0] * 8
        assert all(step.duration_us > 0 for step in end.steps)
        assert len(scheduler.reports) <= 2, "steps alone send no frame"


@pytest.mark.parametrize("drop_kv", [False, True])
async def test_who_is_displaced_is_reported_and_goes_on_when_told(drop_kv):
    async with member(ReferenceEngine(INFO, 256, step_delay_s=0.002)) as (worker, _, scheduler, tokens):
        worker.submit(job("first", 100))
        await scheduler.until(lambda: "first" in named(scheduler.reports, "started_request_ids"))
        worker.submit(job("second", displaced=(("first", drop_kv),)))
        await scheduler.until(lambda: "second" in named(scheduler.reports, "finished_request_ids"))
        assert list(scheduler.reports[-1].paused_request_ids) == ["first"]
        assert "first" not in named(scheduler.reports, "finished_request_ids")
        await scheduler.answers.put(pb.EnlistResponse(resumed_request_ids=["first", "nobody"]))
        await scheduler.until(lambda: "first" in named(scheduler.reports, "finished_request_ids"))
        assert not scheduler.reports[-1].paused_request_ids
        assert tokens == {"first": expected_answer(PROMPT, 100), "second": expected_answer(PROMPT, 4)}


async def test_an_answer_without_a_lease_leaves_it_as_it_is():
    async with member(ReferenceEngine(INFO, 256)) as (worker, link, scheduler, _):
        async with asyncio.timeout(20):
            await link.enlisted.wait()
        await scheduler.answers.put(pb.EnlistResponse(resumed_request_ids=["nobody"]))
        worker.submit(job("after"))
        await scheduler.until(lambda: "after" in named(scheduler.reports, "finished_request_ids"))
        assert link._lease_s == 60


async def test_without_a_scheduler_the_displaced_go_on_and_the_next_enlistment_tells_the_truth():
    engine = GatedEngine()
    async with member(engine) as (worker, link, scheduler, tokens):
        worker.submit(job("first", 10))
        await scheduler.until(lambda: "first" in named(scheduler.reports, "started_request_ids"))
        for name, others in [("second", ["first"]), ("third", ["second"])]:
            worker.submit(job(name, 10, displaced=tuple((other, False) for other in others)))
            engine.gate.release(2)
            await scheduler.until(lambda name=name: name in named(scheduler.reports, "started_request_ids"))
        scheduler.hang_up.set()
        await scheduler.until(lambda: len(scheduler.enlistments) == 2)
        told = scheduler.enlistments[-1]
        assert sorted(told.running_request_ids) == ["first", "second", "third"]
        assert list(told.paused_request_ids) == ["first", "second"]
        engine.let_through()  # the slot comes free, and it is the scheduler's to say who is next
        await scheduler.until(lambda: "third" in named(scheduler.reports, "finished_request_ids"))
        assert list(scheduler.reports[-1].paused_request_ids) == ["first", "second"]
        assert worker.status().num_slots_in_use == 0
        scheduler.closed = True
        scheduler.hang_up.set()
        async with asyncio.timeout(20):
            await link.idle.wait()
        assert tokens == {name: expected_answer(PROMPT, 10) for name in ("first", "second", "third")}
        scheduler.closed = False
        await scheduler.until(lambda: len(scheduler.enlistments) == 3)
        assert not scheduler.enlistments[-1].running_request_ids
        assert not scheduler.enlistments[-1].paused_request_ids


async def test_leaving_waits_until_the_scheduler_has_heard_and_a_later_enlistment_says_so_too():
    async with member(ReferenceEngine(INFO, 256)) as (_, link, scheduler, _):
        async with asyncio.timeout(20):
            await link.enlisted.wait()
        assert not scheduler.enlistments[0].draining
        await link.drain()
        assert scheduler.reports[-1].draining
        scheduler.hang_up.set()
        await scheduler.until(lambda: len(scheduler.enlistments) > 1)
        assert scheduler.enlistments[-1].draining
