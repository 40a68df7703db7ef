"""Whatever goes wrong: the right error, the other side told, nothing left in use."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.api.scheduler.v1.scheduler_pb2 import Refusal
from headrace.api.types.v1.types_pb2 import Fault
from headrace.chassis import signals
from headrace.core.errors import (
    DeadlineMissed,
    EngineFault,
    InvalidRequest,
    NoExecutor,
    Overloaded,
    QueueFull,
    Unavailable,
)
from headrace.core.request import FinishReason


async def silent(run):
    await asyncio.Event().wait()


async def one_token(run):
    run.send(b"a")
    await asyncio.Event().wait()


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancel_before_placement_reaches_the_scheduler(world, until):
    async with world() as w:
        w.scheduler.holding = True
        task = asyncio.create_task(w.client.generate("bytes", "x"))
        await until(lambda: len(w.scheduler.submissions) == 1)
        await cancelled(task)
        wire_id = w.scheduler.submissions[0].request_id
        await until(lambda: w.scheduler.cancelled == [wire_id])
        await w.idle()
        assert (await w.span()).attributes[signals.ERROR_TYPE] == "CANCELLED"
        w.scheduler.place(wire_id)  # was on its way already: given back
        await until(lambda: w.scheduler.cancelled == [wire_id, wire_id])
        assert not w.executor.starts


async def test_cancel_after_placement_reaches_the_executor(world, until):
    async with world() as w:
        w.executor.script = one_token
        stream = w.client.stream("bytes", "x")
        assert (await anext(stream)).text == "a"
        await stream.aclose()
        await until(lambda: w.executor.cancelled == [w.executor.starts[0].request_id])
        await w.idle()
        assert not w.scheduler.cancelled


async def test_cancel_while_preparing_leaves_nothing(world, until):
    async with world() as w:
        w.preparer.gate = asyncio.Event()
        task = asyncio.create_task(w.client.generate("bytes", "x"))
        await until(lambda: len(w.preparer.parents) == 1)
        await cancelled(task)
        await w.idle()
        assert not w.scheduler.submissions


async def test_deadline_while_queued(world, until):
    async with world() as w:
        w.scheduler.holding = True
        with pytest.raises(DeadlineMissed):
            await w.client.generate("bytes", "x", timeout_s=0.3)
        span = await w.span()
        assert span.attributes[signals.ERROR_TYPE] == "DEADLINE_MISSED"
        assert "while queued" in span.status.description
        assert 0 < w.scheduler.submissions[0].deadline_ms <= 300
        await until(lambda: len(w.scheduler.cancelled) == 1)
        await w.idle()


async def test_deadline_while_preparing(world):
    async with world() as w:
        w.preparer.gate = asyncio.Event()
        with pytest.raises(DeadlineMissed):
            await w.client.generate("bytes", "x", timeout_s=0.3)
        assert "while queued" in (await w.span()).status.description
        await w.idle()


async def test_deadline_while_generating(world, until):
    async with world() as w:
        w.executor.script = one_token
        with pytest.raises(DeadlineMissed):
            await w.client.generate("bytes", "x", timeout_s=0.5)
        span = await w.span()
        assert span.attributes[signals.ERROR_TYPE] == "DEADLINE_MISSED"
        assert "while generating, after 1 tokens" in span.status.description
        assert 0 < w.executor.starts[0].deadline_ms <= 500
        await until(lambda: len(w.executor.cancelled) == 1)
        await w.idle()


@pytest.mark.parametrize(
    ("finish", "kind"), [(FinishReason.DEADLINE, DeadlineMissed), (FinishReason.FAULT, EngineFault)]
)
async def test_an_answer_that_the_executor_broke_off_is_an_error_after_its_tokens(world, finish, kind):
    async def script(run):
        run.send(b"abc", finish=finish)

    async with world() as w:
        w.executor.script = script
        stream = w.client.stream("bytes", "x")
        assert (await anext(stream)).text == "abc"
        with pytest.raises(kind):
            await anext(stream)
        await w.idle()


async def test_admission_refuses_at_once_and_says_when_to_retry(world, until):
    async with world(max_requests=1) as w:
        w.scheduler.holding = True
        task = asyncio.create_task(w.client.generate("bytes", "x"))
        await until(lambda: len(w.scheduler.submissions) == 1)
        with pytest.raises(Overloaded) as refused:
            await w.client.generate("bytes", "x")
        assert refused.value.retry_after_s == 0.5
        await cancelled(task)
        await w.idle()


async def test_admission_counts_answer_tokens_once_they_are_known(world, until):
    async with world(max_queued_tokens=600) as w:
        w.scheduler.holding = True
        task = asyncio.create_task(w.client.generate("bytes", "x", max_tokens=500))
        await until(lambda: len(w.scheduler.submissions) == 1)
        assert w.gateway.in_use().tokens == 501
        with pytest.raises(Overloaded):
            await w.client.generate("bytes", "x", max_tokens=100)
        with pytest.raises(InvalidRequest):  # not even an idle gateway has room
            await w.client.generate("bytes", "x", max_tokens=600)
        await cancelled(task)
        await w.idle()


async def test_refusals_and_faults_arrive_as_what_they_are(world):
    async with world() as w:
        w.scheduler.refusal = Refusal(fault=Fault(reason="QUEUE_FULL", message="full", retry_after_ms=700))
        with pytest.raises(QueueFull) as refused:
            await w.client.generate("bytes", "x")
        assert refused.value.retry_after_s == 0.7
        w.scheduler.refusal = Refusal(fault=Fault(reason="NO_EXECUTOR", message="none"))
        with pytest.raises(NoExecutor):
            await w.client.generate("bytes", "x")
        w.scheduler.refusal = None

        async def script(run):
            run.send(fault=Fault(reason="ENGINE_FAULT", message="incident 7"))

        w.executor.script = script
        with pytest.raises(EngineFault, match="incident 7"):
            await w.client.generate("bytes", "x")
        await w.idle()
        assert not w.executor.cancelled  # it has ended there


async def test_a_lost_scheduler_gets_the_waiting_requests_again(world, until):
    async with world() as w, grpc.aio.insecure_channel(w.gateway.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def ready():
            return (await health.Check(health_pb2.HealthCheckRequest())).status == 1

        states = [status.status async for status in first(health.Watch(health_pb2.HealthCheckRequest()), 1)]
        assert states == [1]
        w.executor.script = one_token
        running = w.client.stream("bytes", "running")
        assert (await anext(running)).text == "a"
        w.scheduler.holding = True
        task = asyncio.create_task(w.client.generate("bytes", "waiting", request_id="w"))
        await until(lambda: len(w.scheduler.submissions) == 2)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        seen = asyncio.create_task(collect(watch, 3))
        await asyncio.wait_for(watch.initial_metadata(), 20)
        await w.restart_scheduler()
        await until(lambda: len(w.scheduler.submissions) == 3)
        assert await asyncio.wait_for(seen, 20) == [1, 2, 1]
        assert await ready()
        assert w.scheduler.submissions[1].request_id == w.scheduler.submissions[2].request_id
        assert len(set(w.scheduler.gateway_ids)) == 1
        await running.aclose()
        w.executor.script = answer_ok
        w.scheduler.place(w.scheduler.submissions[2].request_id)
        assert (await task).text == "ok"
        await w.idle()


async def answer_ok(run):
    run.send(b"ok\0", finish=FinishReason.STOP)


async def first(items, count):
    async for item in items:
        yield item
        count -= 1
        if not count:
            items.cancel()
            return


async def collect(items, count):
    return [item.status async for item in first(items, count)]


async def test_a_lost_executor_fails_what_ran_there_and_may_not_move(world, until):
    async with world(max_failovers=0) as w:
        w.executor.script = one_token
        stream = w.client.stream("bytes", "x")
        assert (await anext(stream)).text == "a"
        await w.executor_server.stop(0)
        with pytest.raises(Unavailable):
            await anext(stream)
        await until(lambda: w.scheduler.cancelled == [w.executor.starts[0].request_id])
        await w.idle()
        assert w.gateway.in_use().links == 0
        with pytest.raises(Unavailable):  # placed there again: nobody answers
            await w.client.generate("bytes", "x")
        await w.idle()


async def test_a_slow_reader_holds_up_nobody_and_loses_nothing(world, until):
    num_frames, frame = 3000, bytes(range(1, 128)) * 8
    sent = []

    async def script(run):
        if len(run.start.token_ids) != 4 * len("slow"):
            await answer_ok(run)
            return
        for _ in range(num_frames):
            run.send(frame)
            await asyncio.sleep(0)
        run.send(finish=FinishReason.LENGTH)
        sent.append(True)

    async with (
        world(max_buffered_frames=8, longest_unread_s=600) as w,
        grpc.aio.insecure_channel(w.gateway.address) as channel,
    ):
        w.executor.script = script
        slow = GatewayServiceStub(channel).Generate(pb.GenerateRequest(model="bytes", text="slow"))
        await until(lambda: len(w.executor.starts) == 1)
        answers = await asyncio.gather(*(w.client.generate("bytes", f"good {i}") for i in range(16)))
        assert [answer.text for answer in answers] == ["ok"] * 16
        await until(lambda: bool(sent))
        assert w.gateway.in_use().requests == 1
        pieces = [piece async for piece in slow]
        assert "".join(piece.text for piece in pieces) == (frame * num_frames).decode()
        assert pieces[-1].usage.completion_tokens == len(frame) * num_frames
        assert len(pieces) < num_frames
        await w.idle()


async def test_a_reader_that_leaves_without_reading_frees_everything(world, until):
    async def script(run):
        for _ in range(3000):
            run.send(b"x" * 1000)
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    async with world() as w, grpc.aio.insecure_channel(w.gateway.address) as channel:
        w.executor.script = script
        call = GatewayServiceStub(channel).Generate(pb.GenerateRequest(model="bytes", text="x"))
        await until(lambda: len(w.executor.starts) == 1)
        call.cancel()
        await until(lambda: len(w.executor.cancelled) == 1)
        await w.idle()
        assert (await w.span()).attributes[signals.ERROR_TYPE] == "CANCELLED"


async def test_the_callers_trace_goes_on(world):
    async with world() as w:
        tracer = TracerProvider().get_tracer("caller")
        with tracer.start_as_current_span("outer") as outer:
            await w.client.generate("bytes", "x")
        span = await w.span()
        assert span.parent.span_id == outer.get_span_context().span_id
        parent = trace.get_current_span(w.preparer.parents[0]).get_span_context()
        assert parent.span_id == span.context.span_id


async def test_leaving_ends_what_still_runs(world, until):
    async with world() as w:
        w.executor.script = silent
        task = asyncio.create_task(w.client.generate("bytes", "x"))
        await until(lambda: len(w.executor.starts) == 1)
    with pytest.raises((Unavailable, asyncio.CancelledError)):
        await task
    assert w.held() == (0,) * 6


async def test_a_finish_reason_unknown_here_fails_only_its_request(world, until):
    async def script(run):
        run.send(b"x")
        frame = run.frames.get_nowait()
        frame.outputs[0].finish_reason = 42
        run.frames.put_nowait(frame)

    async with world() as w:
        w.executor.script = script
        with pytest.raises(EngineFault, match="42"):
            await w.client.generate("bytes", "x")
        await until(lambda: len(w.executor.cancelled) == 1)
        w.executor.script = answer_ok
        assert (await w.client.generate("bytes", "x")).text == "ok"
        await w.idle()
