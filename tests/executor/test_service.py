"""The executor over real sockets with the reference engine: answers, cancels, faults, membership, everything back."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.api.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from headrace.api.types.v1.types_pb2 import FinishReason, Sampling, TraceContext
from headrace.chassis.config import load_settings
from headrace.chassis.server import serve
from headrace.core.errors import ConfigError
from headrace.executor import app
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Takes enlistments and keeps the reports."""

    def __init__(self):
        self.enlistments = []
        self.started = []
        self.finished = []
        self.hang_ups = 0
        self.lease_ms = 1000
        self.changed = asyncio.Condition()

    async def Enlist(self, request_iterator, context):
        async for frame in request_iterator:
            if frame.HasField("enlistment"):
                self.enlistments.append(frame.enlistment)
            else:
                self.started += frame.report.started_request_ids
                self.finished += frame.report.finished_request_ids
            async with self.changed:
                self.changed.notify_all()
            yield scheduler_pb2.EnlistResponse(lease_ms=self.lease_ms)
            if self.hang_ups:
                self.hang_ups -= 1
                return

    async def until(self, condition):
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(condition)


@asynccontextmanager
async def suite(tmp_path, scheduler=None, drain_s=30, **executor):
    reference.install(tmp_path)
    scheduler = scheduler or Scheduler()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    plain = load_settings()
    async with serve(
        "127.0.0.1:0",
        plain.transport,
        lambda server: scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server),
        ["headrace.scheduler.v1.SchedulerService"],
    ) as handle:
        settings = load_settings(
            None,
            {
                "models": {"home": tmp_path},
                "transport": {"drain_s": drain_s},
                "executor": {
                    "listen": "127.0.0.1:0",
                    "scheduler": handle.address,
                    "engine": "reference",
                    "models": ("reference",),
                    "num_slots": 8,
                    **executor,
                },
            },
        )
        async with app.start(settings, provider.get_tracer("test")) as own:
            await scheduler.until(lambda: scheduler.enlistments)
            async with grpc.aio.insecure_channel(own.address) as channel:
                yield ExecutorServiceStub(channel), scheduler, exporter


def make_start(request_id, prompt=b"Hello", **sampling):
    sampling.setdefault("max_tokens", 8)
    return pb.Start(
        request_id=request_id,
        model="reference",
        token_ids=np.frombuffer(prompt, np.uint8).astype("<u4").tobytes(),
        sampling=Sampling(**sampling),
    )


async def collect(call, count):
    """Token ids and the last output of each (request, index), until `count` of them have ended."""
    tokens, ends = {}, {}
    async with asyncio.timeout(30):
        while len(ends) < count:
            frame = await call.read()
            assert frame is not grpc.aio.EOF
            for output in frame.outputs:
                key = output.request_id, output.index
                tokens.setdefault(key, []).extend(np.frombuffer(output.token_ids, "<u4").tolist())
                if output.finish_reason or output.HasField("fault"):
                    ends[key] = output
    return tokens, ends


async def status(stub):
    return await stub.GetStatus(pb.GetStatusRequest())


async def test_answers_are_those_worked_out_on_paper(tmp_path):
    async with suite(tmp_path) as (stub, scheduler, _):
        call = stub.Execute()
        prompts = [f"prompt number {n}".encode() * (n + 1) for n in range(8)]
        await call.write(pb.ExecuteRequest(starts=[make_start(str(n), p) for n, p in enumerate(prompts)]))
        tokens, ends = await collect(call, 8)
        for number, prompt in enumerate(prompts):
            assert tokens[str(number), 0] == expected_answer(list(prompt), 8)
            assert ends[str(number), 0].finish_reason == FinishReason.FINISH_REASON_LENGTH
        await scheduler.until(lambda: len(scheduler.finished) == 8)
        assert sorted(scheduler.started) == sorted(scheduler.finished)
        now = await status(stub)
        assert (now.num_running, now.num_slots_in_use, now.num_blocks_in_use) == (0, 0, 0)


async def test_guessed_tokens_are_counted_and_change_nothing(tmp_path):
    async with suite(tmp_path) as (stub, _, _):
        call = stub.Execute()
        start = make_start("r", b"Hi")
        known = list(b"ABABAB")
        start.answer_token_ids.append(np.array(known, "<u4").tobytes())
        await call.write(pb.ExecuteRequest(starts=[start]))
        tokens, _ = await collect(call, 1)
        assert tokens["r", 0] == expected_answer([*b"Hi", *known], 2)
        now = await status(stub)
        assert now.num_proposed_tokens == 1  # one more is left to the answer
        assert now.num_accepted_tokens == 0  # the reference engine repeats nothing


async def test_several_answers_share_the_prompt(tmp_path):
    async with suite(tmp_path) as (stub, scheduler, _):
        call = stub.Execute()
        prompt = b"a prompt of more than one block"
        await call.write(pb.ExecuteRequest(starts=[make_start("many", prompt, n=4, temperature=1.0, seed=7)]))
        tokens, _ = await collect(call, 4)
        await call.write(pb.ExecuteRequest(starts=[make_start("one", prompt, temperature=1.0, seed=7)]))
        alone, _ = await collect(call, 1)
        assert tokens["many", 0] == alone["one", 0]
        assert len({tuple(answer) for answer in tokens.values()}) > 1
        await scheduler.until(lambda: len(scheduler.finished) == 2)
        assert (await status(stub)).num_blocks_in_use == 0


async def test_a_cancel_stops_the_engine_within_one_step(tmp_path):
    async with suite(tmp_path, reference_step_ms=20) as (stub, scheduler, _):
        call = stub.Execute()
        await call.write(pb.ExecuteRequest(starts=[make_start("long", max_tokens=2000)]))
        await call.read()
        await call.write(pb.ExecuteRequest(cancelled_request_ids=["long"]))
        _, ends = await collect(call, 1)
        assert ends["long", 0].finish_reason == FinishReason.FINISH_REASON_CANCELLED
        after = (await status(stub)).num_steps
        await asyncio.sleep(0.2)
        assert (await status(stub)).num_steps == after
        await scheduler.until(lambda: scheduler.finished == ["long"])
        assert (await status(stub)).num_blocks_in_use == 0


async def test_a_lost_gateway_leaves_nothing_behind(tmp_path):
    async with suite(tmp_path, reference_step_ms=5) as (stub, scheduler, _):
        call = stub.Execute()
        starts = [make_start(str(n), max_tokens=1000, n=1 + n % 2) for n in range(5)]
        await call.write(pb.ExecuteRequest(starts=starts))
        await call.read()
        call.cancel()
        await scheduler.until(lambda: len(scheduler.finished) == 5)
        now = await status(stub)
        assert (now.num_running, now.num_slots_in_use, now.num_blocks_in_use) == (0, 0, 0)


@pytest.mark.parametrize(
    ("start", "reason", "field"),
    [
        (make_start("x", b""), "INVALID_REQUEST", "token_ids"),
        (make_start("", b"a"), "INVALID_REQUEST", "request_id"),
        (make_start("x", max_tokens=100_000), "INVALID_REQUEST", "sampling.max_tokens"),
        (make_start("x", temperature=-1), "INVALID_REQUEST", "sampling.temperature"),
        (make_start("x", n=9, temperature=1), "POOL_EXHAUSTED", ""),
        (pb.Start(request_id="x", model="other"), "MODEL_NOT_FOUND", "model"),
        (pb.Start(request_id="x", model="reference", token_ids=b"abc"), "INVALID_REQUEST", "token_ids"),
        (pb.Start(request_id="x", model="reference", token_ids=bytes(4)), "INVALID_REQUEST", "sampling.max_tokens"),
        (
            pb.Start(request_id="x", model="reference", token_ids=b"\xff\xff\xff\xff", sampling=Sampling(max_tokens=1)),
            "INVALID_REQUEST",
            "token_ids",
        ),
    ],
)
async def test_a_bad_start_fails_alone(tmp_path, start, reason, field):
    async with suite(tmp_path, reference_step_ms=1) as (stub, _, _):
        call = stub.Execute()
        await call.write(pb.ExecuteRequest(starts=[make_start("good", max_tokens=20), start]))
        tokens, ends = await collect(call, 2)
        assert tokens["good", 0] == expected_answer(list(b"Hello"), 20)
        (bad,) = [end for key, end in ends.items() if key[0] != "good"]
        assert (bad.fault.reason, bad.fault.field) == (reason, field)


async def test_a_second_start_of_a_running_id_is_refused_and_the_first_goes_on(tmp_path):
    async with suite(tmp_path, reference_step_ms=5) as (stub, scheduler, _):
        call = stub.Execute()
        await call.write(pb.ExecuteRequest(starts=[make_start("same", max_tokens=50), make_start("same")]))
        faults, tokens = [], []
        async with asyncio.timeout(20):
            while len(tokens) < 50:
                for output in (await call.read()).outputs:
                    faults += [output.fault.field] if output.HasField("fault") else []
                    tokens += np.frombuffer(output.token_ids, "<u4").tolist()
        assert faults == ["request_id"]
        assert tokens == expected_answer(list(b"Hello"), 50)
        await scheduler.until(lambda: scheduler.finished == ["same"])


async def test_a_passed_deadline_ends_the_answer(tmp_path):
    async with suite(tmp_path, reference_step_ms=10) as (stub, scheduler, _):
        call = stub.Execute()
        start = make_start("late", max_tokens=2000)
        start.deadline_ms = 100
        await call.write(pb.ExecuteRequest(starts=[start]))
        _, ends = await collect(call, 1)
        assert ends["late", 0].fault.reason == "DEADLINE_MISSED"
        await scheduler.until(lambda: scheduler.finished == ["late"])


async def test_spans_hang_under_the_request_and_link_to_the_batch(tmp_path):
    async with suite(tmp_path) as (stub, scheduler, exporter):
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        start = make_start("traced")
        start.trace.CopyFrom(TraceContext(traceparent=f"00-{trace_id}-b7ad6b7169203331-01"))
        start.batch_trace.CopyFrom(TraceContext(traceparent="00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"))
        call = stub.Execute()
        await call.write(pb.ExecuteRequest(starts=[start]))
        await collect(call, 1)
        await scheduler.until(lambda: scheduler.finished)
        spans = {span.name: span for span in exporter.get_finished_spans()}
        assert set(spans) == {"executor.prefill", "executor.decode"}
        for span in spans.values():
            assert f"{span.context.trace_id:032x}" == trace_id
            assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
            assert [f"{link.context.span_id:016x}" for link in span.links] == ["c7ad6b7169203331"]
        assert spans["executor.decode"].attributes["gen_ai.usage.output_tokens"] == 8
        assert spans["executor.prefill"].end_time == spans["executor.decode"].start_time


async def test_it_enlists_with_what_it_has(tmp_path):
    async with suite(tmp_path, reference_step_ms=10) as (_, scheduler, _):
        assert scheduler.enlistments[0].models[0].name == "reference"
        assert scheduler.enlistments[0].num_slots == 8


async def test_what_is_finished_after_a_broken_stream_is_reported_on_the_next(tmp_path):
    scheduler = Scheduler()
    scheduler.hang_ups, scheduler.lease_ms = 1, 60_000  # no heartbeat hides a report that is lost
    async with suite(tmp_path, scheduler) as (stub, _, _):
        await scheduler.until(lambda: len(scheduler.enlistments) == 2)
        call = stub.Execute()
        await call.write(pb.ExecuteRequest(starts=[make_start("after")]))
        await collect(call, 1)
        await scheduler.until(lambda: scheduler.finished == ["after"])
        assert scheduler.started == ["after"]


async def test_leaving_does_not_wait_for_a_gateway_that_only_keeps_its_stream_open(tmp_path):
    async with asyncio.timeout(30), AsyncExitStack() as gateway:
        async with suite(tmp_path, drain_s=600) as (_, scheduler, _):
            address = scheduler.enlistments[0].address
            channel = await gateway.enter_async_context(grpc.aio.insecure_channel(address))
            call = ExecutorServiceStub(channel).Execute()
            await call.write(pb.ExecuteRequest(starts=[make_start("done")]))
            await collect(call, 1)
            await scheduler.until(lambda: scheduler.finished == ["done"])
        assert await call.read() is grpc.aio.EOF


async def test_a_step_budget_that_starves_prefills_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="step_tokens"):
        async with suite(tmp_path, step_tokens=8):
            pass


class Hesitant(Scheduler):
    """Does not answer a report of leaving before `placed` is set: until then it has not heard."""

    def __init__(self):
        super().__init__()
        self.lease_ms = 60_000
        self.told, self.placed = asyncio.Event(), asyncio.Event()

    async def Enlist(self, request_iterator, context):
        async def frames():
            async for frame in request_iterator:
                if frame.report.draining:
                    self.told.set()
                    await self.placed.wait()
                yield frame

        async for response in super().Enlist(frames(), context):
            yield response


async def test_what_was_placed_before_the_scheduler_heard_of_leaving_is_served(tmp_path):
    scheduler = Hesitant()

    async def under_way(call):
        await scheduler.told.wait()
        await call.write(pb.ExecuteRequest(starts=[make_start("under way")]))
        answer = await collect(call, 1)
        scheduler.placed.set()
        return answer

    async with asyncio.timeout(30), AsyncExitStack() as gateway:
        async with suite(tmp_path, scheduler) as (_, _, _):
            address = scheduler.enlistments[0].address
            channel = await gateway.enter_async_context(grpc.aio.insecure_channel(address))
            call = ExecutorServiceStub(channel).Execute()
            await call.write(pb.ExecuteRequest(starts=[make_start("before")]))
            await collect(call, 1)
            late = asyncio.create_task(under_way(call))
        tokens, ends = await late
        assert not ends["under way", 0].HasField("fault")
        assert tokens["under way", 0] == expected_answer(list(b"Hello"), 8)
