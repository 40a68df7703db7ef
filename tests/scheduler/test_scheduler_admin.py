"""Settings of a running scheduler, and its status, over real gRPC."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.trace import NoOpTracer

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerAdminServiceStub, SchedulerServiceStub
from headrace.api.types.v1.types_pb2 import (
    QOS_CLASS_BATCH,
    QOS_CLASS_NORMAL,
    QOS_CLASS_REALTIME,
)
from headrace.chassis.channel import open_channel
from headrace.chassis.config import SchedulerSettings, Settings, TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.request import Precision
from headrace.scheduler import app
from headrace.scheduler.admin import MAX_CHANGES_BYTES, to_status
from headrace.scheduler.loop import SchedulerLoop
from headrace.scheduler.policy.events import ExecutorEnlisted, LoadedModel
from headrace.scheduler.policy.limits import LIVE, Bounds, Limits
from headrace.scheduler.policy.machine import step
from headrace.scheduler.policy.prediction import PRIOR
from headrace.scheduler.policy.state import PaddedTally, State

PATIENCE_S = 10
SERVICES = {"headrace.scheduler.v1.SchedulerService", "headrace.scheduler.v1.SchedulerAdminService"}


@dataclass
class Bench:
    """A scheduler, one executor's stream and one gateway's."""

    channel: grpc.aio.Channel
    admin: SchedulerAdminServiceStub
    executor: grpc.aio.StreamStreamCall
    gateway: grpc.aio.StreamStreamCall

    async def submit(self, request_id: str, qos_class: int, **fields: object) -> None:
        numbers = {"model": "m", "prompt_tokens": 20, "max_output_tokens": 10, "n": 1, **fields}
        submission = pb.Submission(request_id=request_id, qos_class=qos_class, **numbers)
        await self.gateway.write(pb.SubmitRequest(submissions=[submission]))

    async def report(self, **fields: object) -> None:
        """Returns once the scheduler has taken it in."""
        await self.executor.write(pb.EnlistRequest(report=pb.ExecutorReport(**fields)))
        async with asyncio.timeout(PATIENCE_S):
            while not (await self.executor.read()).lease_ms:
                pass

    async def placement(self) -> pb.Placement:
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.gateway.read()
        [placement] = frame.placements
        return placement

    async def status_when(self, holds: Callable[[pb.GetStatusResponse], bool]) -> pb.GetStatusResponse:
        """The status once this holds: submissions and this call travel by different ways."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = await self.admin.GetStatus(pb.GetStatusRequest())
                if holds(status):
                    return status
                await asyncio.sleep(0.005)

    async def waiting(self, total: int) -> None:
        await self.status_when(lambda status: sum(each.num_waiting for each in status.classes) == total)

    async def settings(self) -> dict[str, str]:
        return dict((await self.admin.GetSettings(pb.GetSettingsRequest())).settings)

    async def set(self, **changes: str) -> dict[str, str]:
        return dict((await self.admin.SetSettings(pb.SetSettingsRequest(settings=changes))).settings)

    async def refused(self, **changes: str) -> HeadraceError:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.set(**changes)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        return from_rpc_error(raised.value)


@asynccontextmanager
async def running(**scheduler: object) -> AsyncIterator[Bench]:
    settings = Settings(
        scheduler=SchedulerSettings(listen="127.0.0.1:0", **{"lease_ms": 60_000, "grace_ms": 0, **scheduler}),
        transport=TransportSettings(drain_s=5),
    )
    async with (
        app.start(settings, NoOpTracer()) as handle,
        open_channel(handle.address, settings.transport) as channel,
    ):
        stub = SchedulerServiceStub(channel)
        executor, gateway = stub.Enlist(), stub.Submit()
        enlistment = pb.Enlistment(
            executor_id="e1",
            address="e1:1",
            models=[pb.LoadedModel(name="m", context_tokens=1024)],
            num_slots=1,
            num_blocks=64,
            block_tokens=16,
        )
        await executor.write(pb.EnlistRequest(enlistment=enlistment))
        assert (await executor.read()).lease_ms
        await gateway.write(pb.SubmitRequest(gateway_id="g1"))
        yield Bench(channel, SchedulerAdminServiceStub(channel), executor, gateway)


async def test_all_live_settings_are_shown_with_the_configured_values() -> None:
    async with running(order="strict", max_waiting_requests=77, quota_load=0.6) as bench:
        shown = await bench.settings()
    assert set(shown) == set(LIVE)
    assert (shown["order"], shown["max_waiting_requests"], shown["quota_load"]) == ("strict", "77", "0.6")


@pytest.mark.parametrize(("change", "next_one"), [({}, "patient"), ({"order": "qos"}, "urgent")])
async def test_a_new_order_decides_who_of_those_that_wait_goes_next(change: dict[str, str], next_one: str) -> None:
    async with running(order="fcfs") as bench:
        await bench.submit("first", QOS_CLASS_REALTIME)
        assert (await bench.placement()).request_id == "first"
        await bench.submit("patient", QOS_CLASS_BATCH)
        await bench.submit("urgent", QOS_CLASS_REALTIME)
        await bench.waiting(2)
        await bench.set(**change)
        await bench.report(started_request_ids=["first"], finished_request_ids=["first"])
        assert (await bench.placement()).request_id == next_one


async def test_a_new_order_takes_effect_without_anything_else_happening() -> None:
    async with running(order="fcfs") as bench:
        await bench.submit("running", QOS_CLASS_BATCH)
        await bench.placement()
        await bench.report(started_request_ids=["running"])
        await bench.submit("urgent", QOS_CLASS_REALTIME)
        await bench.waiting(1)
        await bench.set(order="qos")
        placement = await bench.placement()
        assert placement.request_id == "urgent"
        assert [each.request_id for each in placement.displaced] == ["running"]


async def test_a_smaller_bound_refuses_the_next_and_keeps_who_waits() -> None:
    async with running() as bench:
        await bench.submit("r1", QOS_CLASS_NORMAL)
        await bench.placement()
        await bench.submit("r2", QOS_CLASS_NORMAL)
        await bench.submit("r3", QOS_CLASS_NORMAL)
        await bench.waiting(2)
        await bench.set(max_waiting_requests="1")
        await bench.submit("r4", QOS_CLASS_NORMAL)
        async with asyncio.timeout(PATIENCE_S):
            [refusal] = (await bench.gateway.read()).refusals
        assert (refusal.request_id, refusal.fault.limit) == ("r4", "1 requests")
        await bench.waiting(2)


async def test_one_wrong_setting_changes_nothing_and_every_fault_is_named() -> None:
    async with running() as bench:
        before = await bench.settings()
        error = await bench.refused(order="fcfs", batch_share="7", colour="red", max_displacements="often")
        assert await bench.settings() == before
    assert isinstance(error, InvalidRequest)
    assert error.field == "settings"
    assert "batch_share: 7 is outside 0.01..0.99" in error.message
    assert "colour: no such setting" in error.message
    assert "max_displacements: 'often' is not a number" in error.message
    assert "order" not in error.message.split("there are")[0]


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\n", "%"])
@pytest.mark.parametrize("count", [1, 3, len(LIVE), 100])
async def test_a_refusal_fits_a_status_however_odd_the_names(letter: str, count: int) -> None:
    async with running() as bench:
        for size in (1, MAX_CHANGES_BYTES // count // 2 - 20, MAX_CHANGES_BYTES // count - 8, MAX_CHANGES_BYTES):
            names = [f"{number}{letter * (size // len(letter.encode()))}" for number in range(count)]
            for changes in (dict.fromkeys(names, ""), {"order": names[0]}):
                error = await bench.refused(**changes)
                assert (type(error), error.field) == (InvalidRequest, "settings"), error


async def test_settings_changed_at_once_all_take_effect() -> None:
    changes = {"batch_share": "0.4", "quota_load": "0.5", "order": "strict", "longest_wait_s": "7.0"}
    changes |= {"max_waiting_requests": "5", "max_waiting_tokens": "6", "batch_tokens": "8"}
    async with running() as bench:
        await asyncio.gather(*(bench.set(**{name: value}) for name, value in changes.items()))
        assert changes.items() <= (await bench.settings()).items()


def test_a_change_is_in_effect_before_the_loop_has_its_turn() -> None:
    state = State(Limits(Bounds(10, 1000), lease_s=1.0, batch_tokens=100))
    loop = SchedulerLoop(state, lambda command: None)
    loop.configure({"batch_share": "0.4"})
    before, after = loop.configure({"quota_load": "0.5"})
    assert (before.batch_share, before.quota_load) == (0.4, 0.7)
    assert (after.batch_share, after.quota_load) == (0.4, 0.5)
    assert state.limits == after


async def test_old_and_new_values_of_what_changed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as bench:
        with caplog.at_level(logging.INFO, "headrace.scheduler.admin"):
            after = await bench.set(order="fcfs", batch_share="0.25", quota_load="0.7")
            await bench.set(order="fcfs")
    assert caplog.messages == ["settings changed: batch_share 0.5 -> 0.25, order qos -> fcfs"]
    assert (after["order"], after["batch_share"], after["quota_load"]) == ("fcfs", "0.25", "0.7")


async def test_status_counts() -> None:
    async with running() as bench:
        await bench.submit("done", QOS_CLASS_NORMAL)
        await bench.placement()
        steps = [pb.StepSample(num_decodes=1, duration_us=9000)] * 3
        await bench.report(started_request_ids=["done"], finished_request_ids=["done"], steps=steps)
        await bench.submit("displaced", QOS_CLASS_BATCH)
        await bench.placement()
        await bench.report(started_request_ids=["displaced"])
        await bench.submit("urgent", QOS_CLASS_REALTIME, prompt_tokens=40)
        await bench.placement()
        await bench.submit("waits", QOS_CLASS_NORMAL)
        await bench.submit("waits too", QOS_CLASS_NORMAL, n=2)
        await bench.submit("given up", QOS_CLASS_BATCH)
        await bench.submit("unservable", QOS_CLASS_BATCH, model="unknown")
        await bench.gateway.write(pb.SubmitRequest(cancelled_request_ids=["given up"]))
        status = await bench.status_when(lambda status: status.tally.withdrawn == 1)
    waiting = {each.qos_class: (each.num_waiting, each.waiting_tokens) for each in status.classes}
    assert waiting == {QOS_CLASS_REALTIME: (0, 0), QOS_CLASS_NORMAL: (1, 30), QOS_CLASS_BATCH: (0, 0)}
    assert (status.num_running, status.num_displaced) == (1, 1)
    # two answers need two slots, which nobody has
    assert status.tally == pb.Tally(submitted=7, refused=2, withdrawn=1, finished=1, displaced=1)
    [executor] = status.executors
    # 30 tokens are two blocks, which the displaced one keeps; 50 tokens are four
    assert executor == pb.ExecutorStatus(
        executor_id="e1",
        address="e1:1",
        num_slots_in_use=1,
        num_slots=1,
        num_blocks_in_use=6,
        num_blocks=64,
        load=1.0,
        models=["m"],
    )
    [model] = status.step_models
    assert (model.model, model.num_steps) == ("m", 3)
    assert [model.step_ms, model.decode_ms, model.prefill_token_ms] == pytest.approx([each * 1000 for each in PRIOR])


async def test_status_shows_who_drains() -> None:
    async with running() as bench:
        await bench.report(draining=True)
        [executor] = (await bench.admin.GetStatus(pb.GetStatusRequest())).executors
    assert executor.draining
    assert executor.load == 0


def test_status_tells_of_more_in_use_than_any_executor_may_have() -> None:
    state, most = State(Limits(Bounds(10, 1000), lease_s=1.0, batch_tokens=100)), 2**32 - 1
    model = LoadedModel("m", Precision.ANY, 64)
    step(state, ExecutorEnlisted("e1", "e1:1", (model,), 1, most, 1, running_ids=("a", "b", "c")), 0.0)
    [executor] = to_status(state).executors
    assert (executor.num_slots_in_use, executor.num_blocks_in_use) == (3, 3 * most)


async def test_status_tells_of_padded_batches() -> None:
    state = State(Limits(Bounds(10, 1000), lease_s=1.0, batch_tokens=100))
    state.padded["encoder"] = PaddedTally(batches=2, rows=24, possible_rows=32, prompt_tokens=900, padded_tokens=1200)
    [padded] = to_status(state).padded_models
    assert padded == pb.PaddedModelStatus(model="encoder", batches=2, fill=0.75, utilisation=0.75)


async def test_both_services_are_healthy_and_reflected() -> None:
    async with running() as bench:
        health = health_pb2_grpc.HealthStub(bench.channel)
        for service in SERVICES:
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(bench.channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {each.name for each in (await call.read()).list_services_response.service}
        await call.done_writing()
    assert listed >= SERVICES
