"""Every call of every service against malformed frames, beside good streams: the right status, and nothing left over.

A failing case prints its seed and its frames in hex; FUZZ_SEED draws others, FUZZ_CASES more or fewer.
"""

import asyncio
import itertools
import logging
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from headrace.api.executor.v1 import executor_pb2
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.inference import inference_pb2
from headrace.api.preprocess.v1 import preprocess_pb2
from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.chassis.config import Settings, default_home, load_settings
from headrace.chassis.status import from_rpc_error, said_by_service
from headrace.client import AsyncClient
from headrace.client.scheduler_admin import SchedulerAdmin
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference
from headrace.standalone.readiness import await_serving
from headrace.standalone.services import Service, Suite
from headrace.standalone.single import running

SEED = int(os.environ.get("FUZZ_SEED", "1"))
CASES = int(os.environ.get("FUZZ_CASES", "20000"))
AT_ONCE = 24
GOOD_STREAMS = 8
BOUND_S = 120
MESSAGE_BYTES = 2**18
START_TIMEOUT_S = 0.5
"""Placements of gateways that never start them hold their room for so long."""
BACKGROUND_S = 5
WRITTEN_AFTER_END = "Internal error from Core"
"""What gRPC's client makes of a frame that was on its way when the service ended the call: no status of the service's.
A fault of the service's is in the log all the same."""
CONTRACTS = {
    Service.GATEWAY: (gateway_pb2, inference_pb2),
    Service.SCHEDULER: (scheduler_pb2,),
    Service.EXECUTOR: (executor_pb2,),
    Service.ENCODER: (executor_pb2,),
    Service.PREPROCESS: (preprocess_pb2,),
}
RIGHT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}
FAULTS = {"", "INTERNAL", "ENGINE_FAULT"}
"""Reasons that no member of a frame may have failed for."""
Draw = Callable[[random.Random, MethodDescriptor], list[bytes]]


def faults(message: Any) -> list[str]:
    """Reasons of all faults in a response."""
    found = []
    for field, held in message.ListFields():
        if field.message_type is None or (field.is_repeated and field.message_type.GetOptions().map_entry):
            continue
        for each in held if field.is_repeated else (held,):
            found += [each.reason] if field.message_type.name == "Fault" else faults(each)
    return found


def decodes(method: MethodDescriptor, data: bytes) -> bool:
    try:
        GetMessageClass(method.input_type).FromString(data)
    except DecodeError:
        return False
    return True


def objection(method: MethodDescriptor, sent: list[bytes], error: grpc.aio.AioRpcError | None) -> str:
    """What is wrong with how a call ended that its caller did not cancel; '' where nothing is."""
    last, code = sent[-1], error.code() if error else grpc.StatusCode.OK
    if error is not None and not said_by_service(error) and code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return "not the service's own word"
    if len(last) <= MESSAGE_BYTES and decodes(method, last):
        return "" if error is None or code in RIGHT else "no status for a request that makes no sense"
    if method.client_streaming:  # a frame before the last may have ended it
        return "" if code in RIGHT else "a frame that is no message was passed over"
    wanted = grpc.StatusCode.RESOURCE_EXHAUSTED if len(last) > MESSAGE_BYTES else grpc.StatusCode.INVALID_ARGUMENT
    return "" if code is wanted else f"not {wanted.name}"


async def call(channel: grpc.aio.Channel, method: MethodDescriptor, number: int, draw_frames: Draw) -> Counter[str]:
    """One call of drawn frames: the reasons that came, and as `cases` how many frames it was. One of a stream that was
    refused counts once."""
    draw = random.Random(f"{SEED}:{method.full_name}:{number}")
    sent = draw_frames(draw, method)
    up, down = method.client_streaming, method.server_streaming
    cancelled_after = draw.choice((None, None, 0, 1, 3)) if down else None
    path = f"/{method.containing_service.full_name}/{method.name}"
    open_call = getattr(channel, f"{'stream' if up else 'unary'}_{'stream' if down else 'unary'}")(path)
    response_type = GetMessageClass(method.output_type)

    async def write() -> Any:
        for data in sent:
            yield data

    ended: grpc.aio.AioRpcError | None = None
    answered: Counter[str] = Counter(cases=1)
    try:
        async with asyncio.timeout(BOUND_S):
            answer = open_call(write() if up else sent[0], timeout=BOUND_S / 2)
            if not down:
                answered.update(faults(response_type.FromString(await answer)))
            else:
                taken = 0
                if cancelled_after == 0 and not up:
                    answer.cancel()
                async for data in answer:
                    answered.update(faults(response_type.FromString(data)))
                    taken += 1
                    if taken == cancelled_after:
                        answer.cancel()
            answered["cases"] = len(sent)
    except grpc.aio.AioRpcError as error:
        if error.details() == WRITTEN_AFTER_END:
            return answered
        ended = error
        answered[from_rpc_error(error).reason] += 1
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) and task.cancelling():
            raise
        answered["hung up"] += 1
        return answered
    wrong = objection(method, sent, ended) or ", ".join(FAULTS & answered.keys() and answered.keys())
    if wrong:
        status = f"{ended.code().name}: {ended.details()}" if ended else "OK"
        bytes_sent = "\n".join(data[:2000].hex() for data in sent)
        raise AssertionError(f"FUZZ_SEED={SEED} {path} number {number}: {wrong}\n{status} {answered}\n{bytes_sent}")
    return answered


async def good(client: AsyncClient, number: int, over: asyncio.Event) -> int:
    """Asks until it is over; every answer is the one worked out on paper."""
    asked = 0
    while not over.is_set() or not asked:
        prompt = f"good stream {number}.{asked}"
        answer = await client.generate(reference.NAME, prompt, max_tokens=16, ignore_eos=True, timeout_s=BOUND_S)
        assert list(answer.token_ids) == expected_answer(list(prompt.encode()), 16)
        asked += 1
    return asked


async def nothing_left(suite: Suite, scheduler: SchedulerAdmin) -> None:
    """Waits until nobody holds anything: permits, queues, slots, blocks, reservations, fuzzed executors."""
    async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
        executors = [
            ExecutorServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(suite.addresses[name])))
            for name in (Service.EXECUTOR, Service.ENCODER)
        ]
        while True:
            held = suite.handles[Service.GATEWAY].in_use()  # type: ignore[attr-defined]
            now = [await executor.GetStatus(executor_pb2.GetStatusRequest()) for executor in executors]
            there = await scheduler.status()
            left = (
                *(held.requests, held.tokens, held.num_bytes, held.active, held.waiting, held.running),
                *(each.num_running + each.num_waiting for each in now),
                *(each.num_slots_in_use + each.num_blocks_in_use for each in now),
                *(there.num_running, there.num_displaced, *(each.num_requests for each in there.waiting.values())),
                *itertools.chain(*((each.num_slots_in_use, each.num_blocks_in_use) for each in there.executors)),
                len(there.executors) - len(executors),
            )
            if not any(left):
                return
            await asyncio.sleep(0.05)


def settings(home: Path) -> Settings:
    anywhere = {"listen": "127.0.0.1:0"}
    return load_settings(
        overrides={
            "models": {"home": home},
            "transport": {"max_message_bytes": MESSAGE_BYTES},
            "gateway": {**anywhere, "preprocess": "127.0.0.1:0"},
            "preprocess": anywhere,
            "scheduler": {**anywhere, "grace_ms": 0},
            "executor": {
                **anywhere,
                "engine": "reference",
                "models": (reference.NAME,),
                "reference_step_ms": 5,
                "num_slots": 512,
                "step_tokens": 2048,
            },
            "encoder": {**anywhere, "model": "minilm", "threads": 1},
            "results": {"background_s": BACKGROUND_S},
        }
    )


async def test_no_call_harms_a_service(tmp_path: Path, caplog: pytest.LogCaptureFixture, drawn_frames: Draw) -> None:
    reference.install(tmp_path)
    (tmp_path / "models" / "minilm").symlink_to(default_home() / "models" / "minilm")
    caplog.set_level(logging.ERROR)
    configured = settings(tmp_path)
    done: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    over, numbers = asyncio.Event(), itertools.count()
    async with running(configured) as suite, AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(suite.gateway))
        scheduler = await stack.enter_async_context(SchedulerAdmin(suite.addresses[Service.SCHEDULER]))
        await scheduler.set({"start_timeout_s": str(START_TIMEOUT_S)})
        targets: list[tuple[Service, grpc.aio.Channel, MethodDescriptor]] = []
        for name, contracts in CONTRACTS.items():
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(suite.addresses[name]))
            services = [service for each in contracts for service in each.DESCRIPTOR.services_by_name.values()]
            targets += [(name, channel, method) for service in services for method in service.methods]
        streams = [target for target in targets if target[-1].client_streaming]

        async def fuzz() -> None:
            while done.total() < CASES:
                number = next(numbers)
                turn = targets if number % 2 else streams
                name, channel, method = turn[(number // 2) % len(turn)]
                answered = await call(channel, method, number, drawn_frames)
                done[f"{name} {method.full_name}"] += answered.pop("cases")
                seen.update(answered)

        async with asyncio.TaskGroup() as tasks:
            answering = [tasks.create_task(good(client, number, over)) for number in range(GOOD_STREAMS)]
            async with asyncio.TaskGroup() as fuzzers:
                for _ in range(AT_ONCE):
                    fuzzers.create_task(fuzz())
            over.set()
        assert all(task.result() for task in answering)
        assert len(done) == len(targets), done
        await nothing_left(suite, scheduler)
        for name in CONTRACTS:
            await await_serving(suite.addresses[name], configured.transport, BOUND_S)
        print(f"{done.total()} cases", *done.most_common(), "ended with", *seen.most_common(), sep="\n")
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
