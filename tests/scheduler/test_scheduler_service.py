"""The scheduler over real gRPC: both streams, loss on either side, leases, spans."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, Tracer

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerServiceStub
from headrace.api.types.v1 import types_pb2
from headrace.chassis import signals
from headrace.chassis.channel import open_channel
from headrace.chassis.config import SchedulerSettings, Settings, TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.chassis.telemetry import to_frame
from headrace.core import errors
from headrace.scheduler import app

PATIENCE_S = 10


@dataclass
class Suite:
    """A scheduler on a free port, a channel to it, and its spans."""

    channel: grpc.aio.Channel
    tracer: Tracer
    exporter: InMemorySpanExporter

    @property
    def stub(self) -> SchedulerServiceStub:
        return SchedulerServiceStub(self.channel)

    async def gateway(self, gateway_id: str = "g1") -> "Gateway":
        call = self.stub.Submit()
        await call.write(pb.SubmitRequest(gateway_id=gateway_id))
        return Gateway(call)

    async def executor(self, executor_id: str = "e1", **fields: object) -> "Executor":
        call = self.stub.Enlist()
        defaults = {"address": f"{executor_id}:1", "num_slots": 2, "num_blocks": 64, "block_tokens": 16}
        models = [pb.LoadedModel(name="m", precision=types_pb2.PRECISION_INT8, context_tokens=1024)]
        enlistment = pb.Enlistment(**{"executor_id": executor_id, "models": models, **defaults, **fields})
        await call.write(pb.EnlistRequest(enlistment=enlistment))
        executor = Executor(call)
        assert (await executor.renewal()).lease_ms > 0
        return executor

    async def dropped(self, request_id: str) -> None:
        """Waits for the end of the request's queue span as cancelled."""
        wanted = {signals.REQUEST_ID: request_id, signals.ERROR_TYPE: errors.Cancelled.reason}
        async with asyncio.timeout(PATIENCE_S):
            while True:  # the exporter tells nobody
                if any(wanted.items() <= span.attributes.items() for span in self.spans(signals.SCHEDULER_QUEUE)):
                    return
                await asyncio.sleep(0.005)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@dataclass
class Gateway:
    call: grpc.aio.StreamStreamCall
    answers: dict[str, pb.Placement | pb.Refusal] = field(default_factory=dict)

    async def submit(self, *request_ids: str, **fields: object) -> None:
        submissions = [
            pb.Submission(
                **{"request_id": i, "model": "m", "prompt_tokens": 20, "max_output_tokens": 10, "n": 1, **fields}
            )
            for i in request_ids
        ]
        await self.call.write(pb.SubmitRequest(submissions=submissions))

    async def cancel(self, *request_ids: str) -> None:
        await self.call.write(pb.SubmitRequest(cancelled_request_ids=request_ids))

    async def answer(self, request_id: str) -> pb.Placement | pb.Refusal:
        async with asyncio.timeout(PATIENCE_S):
            while request_id not in self.answers:
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF
                self.answers |= {answer.request_id: answer for answer in (*frame.placements, *frame.refusals)}
        return self.answers.pop(request_id)

    async def placement(self, request_id: str) -> pb.Placement:
        answer = await self.answer(request_id)
        assert isinstance(answer, pb.Placement), answer
        return answer

    async def fault(self, request_id: str) -> types_pb2.Fault:
        answer = await self.answer(request_id)
        assert isinstance(answer, pb.Refusal), answer
        return answer.fault

    async def error(self) -> errors.HeadraceError:
        return await _error(self.call)


@dataclass
class Executor:
    call: grpc.aio.StreamStreamCall

    async def renewal(self) -> pb.EnlistResponse:
        async with asyncio.timeout(PATIENCE_S):
            return await self.call.read()

    async def report(self, **fields: object) -> None:
        await self.call.write(pb.EnlistRequest(report=pb.ExecutorReport(**fields)))

    async def error(self) -> errors.HeadraceError:
        return await _error(self.call)


async def _error(call: grpc.aio.StreamStreamCall) -> errors.HeadraceError:
    async with asyncio.timeout(PATIENCE_S):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
    raise AssertionError(f"ended without an error: {await call.code()}")


@asynccontextmanager
async def running(**scheduler: object) -> AsyncIterator[Suite]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    settings = Settings(
        scheduler=SchedulerSettings(listen="127.0.0.1:0", **{"lease_ms": 60_000, "grace_ms": 0, **scheduler}),
        transport=TransportSettings(drain_s=5),
    )
    async with (
        app.start(settings, tracer) as handle,
        open_channel(handle.address, settings.transport) as channel,
    ):
        yield Suite(channel, tracer, exporter)


@pytest.fixture
async def suite() -> AsyncIterator[Suite]:
    async with running() as suite:
        yield suite


async def test_a_submission_is_placed_where_there_is_room(suite: Suite) -> None:
    await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("r1", precision=types_pb2.PRECISION_INT8)
    placement = await gateway.placement("r1")
    assert (placement.executor_id, placement.executor_address) == ("e1", "e1:1")
    assert placement.precision == types_pb2.PRECISION_INT8
    assert placement.batch_size == 1
    assert placement.close_reason == pb.CLOSE_REASON_IDLE
    assert placement.batch_id


async def test_one_frame_of_submissions_makes_one_batch(suite: Suite) -> None:
    await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("r1", "r2")
    first, second = await gateway.placement("r1"), await gateway.placement("r2")
    assert first.batch_id == second.batch_id
    assert first.batch_size == 2
    assert first.close_reason == pb.CLOSE_REASON_FULL


async def test_a_finished_request_makes_room_for_the_next(suite: Suite) -> None:
    executor = await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("r1", "r2", "r3")
    await gateway.placement("r1")
    await executor.report(started_request_ids=["r1", "r2"])
    await executor.report(finished_request_ids=["r1"])
    assert (await gateway.placement("r3")).executor_id == "e1"


async def test_after_its_start_a_request_waits_for_executors_to_enlist() -> None:
    async with running(grace_ms=60_000) as suite:
        gateway = await suite.gateway()
        await gateway.submit("r1")
        await suite.executor()
        assert (await gateway.placement("r1")).executor_id == "e1"


async def test_without_an_executor_the_refusal_says_so(suite: Suite) -> None:
    gateway = await suite.gateway()
    await gateway.submit("r1")
    assert (await gateway.fault("r1")).reason == errors.NoExecutor.reason


async def test_a_class_that_nobody_knows_refuses_one_request_not_the_stream(suite: Suite) -> None:
    await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("odd", qos_class=99)
    await gateway.submit("odder", precision=99)
    await gateway.submit("r1")
    assert (await gateway.fault("odd")).field == "qos_class"
    assert (await gateway.fault("odder")).field == "precision"
    await gateway.placement("r1")


async def test_a_cancelled_request_leaves_the_queue(suite: Suite) -> None:
    executor = await suite.executor(num_slots=1)
    gateway = await suite.gateway()
    await gateway.submit("r1", "r2")
    await gateway.placement("r1")
    await gateway.cancel("r2")
    await gateway.submit("r3")
    await suite.dropped("r2")
    await executor.report(finished_request_ids=["r1"])
    await gateway.placement("r3")
    assert not gateway.answers


async def test_a_placed_request_that_is_cancelled_before_it_starts_leaves_its_room(suite: Suite) -> None:
    await suite.executor(num_slots=1)
    gateway = await suite.gateway()
    await gateway.submit("r1", "r2")
    await gateway.placement("r1")
    await gateway.cancel("r1")
    await gateway.placement("r2")


async def test_a_lost_gateway_takes_its_waiting_requests_along(suite: Suite) -> None:
    executor = await suite.executor()
    lost, other = await suite.gateway("lost"), await suite.gateway("other")
    await lost.submit("r1", "r2", "r3")
    await lost.placement("r1")
    await executor.report(started_request_ids=["r1", "r2"])
    lost.call.cancel()
    await suite.dropped("r3")
    await other.submit("r4")
    await executor.report(finished_request_ids=["r1"])
    assert (await other.placement("r4")).executor_id == "e1"


async def test_a_gateway_that_closes_its_side_is_done(suite: Suite) -> None:
    await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("r1")
    await gateway.call.done_writing()
    await gateway.placement("r1")
    async with asyncio.timeout(PATIENCE_S):
        assert await gateway.call.read() is grpc.aio.EOF


async def test_a_gateway_that_connects_anew_may_submit_again_what_waited(suite: Suite) -> None:
    executor = await suite.executor()
    old = await suite.gateway()
    await old.submit("r1", "r2", "r3")
    await old.placement("r1")
    new = await suite.gateway()
    await new.submit("r3")
    assert isinstance(await old.error(), errors.Cancelled)
    await executor.report(finished_request_ids=["r1"])
    assert (await new.placement("r3")).executor_id == "e1"


async def test_a_lost_executor_gets_no_more_work(suite: Suite) -> None:
    executor = await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("r1", "r2", "r3")
    await gateway.placement("r1")
    executor.call.cancel()
    assert (await gateway.fault("r3")).reason == errors.NoExecutor.reason
    await suite.executor("e2")
    await gateway.submit("r4")
    assert (await gateway.placement("r4")).executor_id == "e2"


async def test_a_silent_executor_loses_its_lease_and_may_enlist_again() -> None:
    async with running(lease_ms=100) as suite:
        executor = await suite.executor()
        assert isinstance(await executor.error(), errors.NoExecutor)
        gateway = await suite.gateway()
        await gateway.submit("r1")
        assert (await gateway.fault("r1")).reason == errors.NoExecutor.reason
        await suite.executor()


async def test_reports_renew_the_lease(suite: Suite) -> None:
    executor = await suite.executor()
    await executor.report()
    assert (await executor.renewal()).lease_ms == 60_000


async def test_an_executor_that_enlists_again_keeps_what_runs(suite: Suite) -> None:
    await suite.executor()
    again = await suite.executor(running_request_ids=["x1", "x2"])
    gateway = await suite.gateway()
    await gateway.submit("r1")
    await again.report(finished_request_ids=["x1"])
    assert (await gateway.placement("r1")).executor_id == "e1"


async def test_a_draining_executor_gets_nothing_new(suite: Suite) -> None:
    executor = await suite.executor()
    await executor.report(draining=True)
    await executor.renewal()
    gateway = await suite.gateway()
    await gateway.submit("r1")
    assert (await gateway.fault("r1")).reason == errors.NoExecutor.reason


async def test_a_stream_must_begin_with_who_it_is(suite: Suite) -> None:
    assert isinstance(await (await suite.gateway("")).error(), errors.InvalidRequest)
    call = suite.stub.Enlist()
    await call.write(pb.EnlistRequest(report=pb.ExecutorReport()))
    assert isinstance(await _error(call), errors.InvalidRequest)


async def test_a_second_enlistment_on_a_stream_ends_it(suite: Suite) -> None:
    executor = await suite.executor()
    await executor.call.write(pb.EnlistRequest(enlistment=pb.Enlistment(executor_id="e1")))
    assert isinstance(await executor.error(), errors.InvalidRequest)


async def test_an_executor_without_capacity_is_sent_away(suite: Suite) -> None:
    call = suite.stub.Enlist()
    await call.write(pb.EnlistRequest(enlistment=pb.Enlistment(executor_id="e1", num_slots=1)))
    assert isinstance(await _error(call), errors.InvalidRequest)


async def test_bytes_that_do_not_decode_end_the_stream_as_the_callers_fault(suite: Suite) -> None:
    raw = suite.channel.stream_stream("/headrace.scheduler.v1.SchedulerService/Submit")
    call = raw()
    await call.write(pb.SubmitRequest(gateway_id="g1").SerializeToString())
    await call.write(b"\xff\xff\xff")
    assert isinstance(await _error(call), errors.InvalidRequest)


async def test_leaving_refuses_what_waits_and_ends_the_streams() -> None:
    settings = Settings(scheduler=SchedulerSettings(listen="127.0.0.1:0"), transport=TransportSettings(drain_s=60))
    async with AsyncExitStack() as stack:
        scheduler = AsyncExitStack()
        handle = await scheduler.enter_async_context(app.start(settings, NoOpTracer()))
        channel = await stack.enter_async_context(open_channel(handle.address, settings.transport))
        suite = Suite(channel, NoOpTracer(), InMemorySpanExporter())
        executor, gateway = await suite.executor(), await suite.gateway()
        await gateway.submit("r1", "r2", "r3")
        await gateway.placement("r1")
        async with asyncio.timeout(PATIENCE_S):  # well under the drain's bound: open streams do not hold it up
            await scheduler.aclose()
        assert (await gateway.fault("r3")).reason == errors.Draining.reason
        assert isinstance(await gateway.error(), errors.Draining)
        assert isinstance(await executor.error(), errors.Draining)


async def test_spans_have_parents_and_links_both_ways(suite: Suite) -> None:
    await suite.executor()
    gateway = await suite.gateway()
    parent = suite.tracer.start_span(signals.GATEWAY_GENERATE)
    await gateway.submit("r1", "r2", trace=to_frame(parent.get_span_context()), qos_class=types_pb2.QOS_CLASS_REALTIME)
    placement = await gateway.placement("r1")
    [batch] = suite.spans(signals.SCHEDULER_BATCH)
    queues = suite.spans(signals.SCHEDULER_QUEUE)
    assert [span.attributes[signals.REQUEST_ID] for span in queues] == ["r1", "r2"]
    for span in queues:
        assert span.parent.span_id == parent.get_span_context().span_id
        assert span.context.trace_id == parent.get_span_context().trace_id
        assert [link.context.span_id for link in span.links] == [batch.context.span_id]
        assert span.attributes[signals.WAIT_REASON] == "none"
        assert span.attributes[signals.QOS_CLASS] == "realtime"
        assert span.attributes[signals.BATCH_CLOSE_REASON] == "full"
    assert batch.parent is None
    assert [link.context.span_id for link in batch.links] == [span.context.span_id for span in queues]
    assert batch.attributes[signals.BATCH_SIZE] == 2
    assert batch.attributes[signals.BATCH_TOKENS] == 40
    assert batch.attributes[signals.BATCH_CLASSES] == ("realtime",)
    assert placement.batch_trace == to_frame(batch.context)


async def test_the_span_of_one_that_waited_says_why(suite: Suite) -> None:
    executor = await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("r1", "r2", "r3", "r4")
    await gateway.placement("r1")
    await executor.report(finished_request_ids=["r1"])
    await gateway.placement("r3")
    span = suite.spans(signals.SCHEDULER_QUEUE)[-1]
    assert span.attributes[signals.REQUEST_ID] == "r3"
    assert span.attributes[signals.WAIT_REASON] == "slots"
    assert span.attributes[signals.QUEUE_POSITION] == 2


async def test_the_span_of_a_refused_one_has_the_reason(suite: Suite) -> None:
    gateway = await suite.gateway()
    await gateway.submit("r1")
    await gateway.fault("r1")
    [span] = suite.spans(signals.SCHEDULER_QUEUE)
    assert span.attributes[signals.ERROR_TYPE] == errors.NoExecutor.reason


async def test_a_deadline_that_passes_in_the_queue_is_refused(suite: Suite) -> None:
    await suite.executor()
    gateway = await suite.gateway()
    await gateway.submit("r1", "r2")
    await gateway.submit("r3", deadline_ms=30)
    fault = await gateway.fault("r3")
    assert (fault.reason, fault.limit) == (errors.DeadlineMissed.reason, "before dispatch")
