"""Every service's contract against malformed calls drawn from the message descriptors, beside good streams.

A failing case prints its seed and its frames in hex; FUZZ_SEED draws others, FUZZ_CASES fewer.
"""

import asyncio
import itertools
import logging
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from headrace.api.executor.v1 import executor_pb2
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub
from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.preprocess.v1 import preprocess_pb2
from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.chassis.config import load_settings
from headrace.chassis.status import from_rpc_error
from headrace.client import AsyncClient
from headrace.client.scheduler_admin import SchedulerAdmin
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference
from headrace.standalone.services import Service, Suite
from headrace.standalone.single import running

SEED = int(os.environ.get("FUZZ_SEED", "1"))
CASES = int(os.environ.get("FUZZ_CASES", "20000"))
AT_ONCE = 24
FRAMES = 12
GOOD_STREAMS = 16
BOUND_S = 120
MESSAGE_BYTES = 2**18
FORBIDDEN = {"INTERNAL", "ENGINE_FAULT"}
BAD_TEXT = "BADUTF8!"
WRITTEN_AFTER_END = "Internal error from Core"
"""What gRPC's client makes of a frame that was on its way when the service ended the call: no status of the service's.
A fault of the service's is in the log all the same."""
SERVICES = {
    Service.GATEWAY: gateway_pb2,
    Service.SCHEDULER: scheduler_pb2,
    Service.EXECUTOR: executor_pb2,
    Service.PREPROCESS: preprocess_pb2,
}
WORDS: dict[str, tuple[Any, ...]] = {
    "LoadedModel.name": ("fuzz",),
    "model": (reference.NAME, "fuzz"),
    "request_id": tuple(f"fuzz-{n}" for n in range(8)),
    "gateway_id": tuple(f"fuzz-{n}" for n in range(8)),
    "executor_id": tuple(f"fuzz-{n}" for n in range(8)),
    "token_ids": (b"", b"\1\0\0\0\2\0\0\0", b"\1\0\0"),
    "role": ("user", "system"),
    "max_tokens": (1, 4, 2**32 - 1),
    "n": (0, 1, 2, 2**32 - 1),
    "SettingsEntry.key": ("realtime_wait_s", "none"),
}
TEXTS = ("", "a", "0", "naïve 名前 😀", "\0\n", "x" * 9000, BAD_TEXT)
INTEGERS = (0, 1, 2, 3, 77, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63))
BITS = {"INT32": (-(2**31), 2**31), "INT64": (-(2**63), 2**63), "UINT32": (0, 2**32), "UINT64": (0, 2**64)}
RANGE = {getattr(FieldDescriptor, f"CPPTYPE_{name}"): bounds for name, bounds in BITS.items()}
RANGE[FieldDescriptor.CPPTYPE_ENUM] = RANGE[FieldDescriptor.CPPTYPE_INT32]


def value(draw: random.Random, owner: Descriptor, field: FieldDescriptor) -> Any:
    words = WORDS.get(f"{owner.name}.{field.name}") or WORDS.get(field.name)
    if words and (draw.random() < 0.9 or owner.name == "LoadedModel"):
        return draw.choice(words)
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw.randbytes(draw.choice((0, 1, 3, 4, 8, 64)))
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return draw.choice((0.0, 0.5, 1.0, -1.0, float("nan"), float("inf"), 1e-45, 3e38))
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    low, high = RANGE[field.cpp_type]
    return draw.choice([number for number in INTEGERS if low <= number < high])


def fill(draw: random.Random, message: Any) -> None:
    owner = message.DESCRIPTOR
    for field in owner.fields:
        if draw.random() < 0.3:
            continue
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key = value(draw, entry, entry.fields_by_name["key"])
            getattr(message, field.name)[key] = value(draw, entry, entry.fields_by_name["value"])
        elif field.is_repeated:
            for _ in range(draw.choice((1, 1, 2, 5))):
                if entry is not None:
                    fill(draw, getattr(message, field.name).add())
                else:
                    getattr(message, field.name).append(value(draw, owner, field))
        elif entry is not None:
            getattr(message, field.name).SetInParent()
            fill(draw, getattr(message, field.name))
        else:
            setattr(message, field.name, value(draw, owner, field))


def frame(draw: random.Random, descriptor: Descriptor, *, whole: bool) -> bytes:
    """Bytes of a message; where not `whole`, often damaged."""
    message = GetMessageClass(descriptor)()
    fill(draw, message)
    data: bytes = message.SerializeToString()
    if whole:
        return data
    data = data.replace(BAD_TEXT.encode(), b"\xff\xfe\xc3\x28\xf0\x28\x8c\x28")
    match draw.randrange(8):
        case 0:
            return data[: draw.randrange(len(data) + 1)]
        case 1:
            damaged = bytearray(data)
            for _ in range(min(len(data), 4)):
                damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            return bytes(damaged)
        case 2:
            return data + b"\xfa\xff\x01\x03abc"
        case 3:
            return draw.randbytes(draw.randrange(64))
        case 4 if draw.random() < 0.1:
            return b"\xfa\xff\x01" + b"\x80\x80\x14" + bytes(5 * 2**16)
        case 5:
            return b"\x0b" * 200 if draw.random() < 0.2 else b""
    return data


def faults(message: Any) -> list[str]:
    """Reasons of all faults in a response."""
    found = []
    for field, held in message.ListFields():
        if field.message_type is None or (field.is_repeated and field.message_type.GetOptions().map_entry):
            continue
        for each in held if field.is_repeated else (held,):
            found += [each.reason] if field.message_type.name == "Fault" else faults(each)
    return found


async def call(channel: grpc.aio.Channel, method: MethodDescriptor, number: int) -> tuple[int, Counter[str]]:
    """One call of drawn frames: how many cases it was, and the reasons that came."""
    draw = random.Random(f"{SEED}:{method.full_name}:{number}")
    up, down = method.client_streaming, method.server_streaming
    count = draw.randrange(FRAMES // 2, FRAMES + 1) if up else 1
    frames = [frame(draw, method.input_type, whole=up and place < count - 1) for place in range(count)]
    if up and method.name == "Enlist":
        frames = [f for f in frames if len(f) < 2**16]
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind = f"{'stream' if up else 'unary'}_{'stream' if down else 'unary'}"
    open_call = getattr(channel, kind)(path)

    async def write() -> Any:
        for data in frames:
            yield data

    reasons: Counter[str] = Counter()
    response_type = GetMessageClass(method.output_type)
    cases, detail = 1, ""
    try:
        async with asyncio.timeout(BOUND_S):
            answer = open_call(write() if up else frames[0], timeout=BOUND_S / 2)
            if not down:
                reasons.update(faults(response_type.FromString(await answer)))
            else:
                cancelled_after = draw.choice((None, None, 0, 1, 3))
                if cancelled_after == 0 and not up:
                    answer.cancel()
                taken = 0
                async for data in answer:
                    reasons.update(faults(response_type.FromString(data)))
                    taken += 1
                    if not up and taken == cancelled_after:
                        answer.cancel()
            cases = len(frames)
    except grpc.aio.AioRpcError as error:
        if error.details() == WRITTEN_AFTER_END:
            return 1, reasons
        reasons[from_rpc_error(error).reason] += 1
        if error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
            reasons["INTERNAL"] += 1
            detail = f"{error.code().name}: {error.details()}"
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) and task.cancelling():
            raise
        reasons["CANCELLED"] += 1
    except TimeoutError:
        reasons["INTERNAL"] += 1
    if FORBIDDEN & reasons.keys():
        sent = "\n".join(data[:2000].hex() for data in frames)
        raise AssertionError(f"FUZZ_SEED={SEED} {path} number {number}: {dict(reasons)} {detail}\n{sent}")
    return cases, reasons


async def good(client: AsyncClient, number: int, over: asyncio.Event) -> int:
    """Asks until it is over; every answer is the one worked out on paper."""
    asked = 0
    while not over.is_set() or not asked:
        prompt = f"good stream {number}.{asked}"
        answer = await client.generate(reference.NAME, prompt, max_tokens=16, ignore_eos=True, timeout_s=BOUND_S)
        assert list(answer.token_ids) == expected_answer(list(prompt.encode()), 16)
        asked += 1
    return asked


async def nothing_left(suite: Suite) -> None:
    async with (
        asyncio.timeout(BOUND_S),
        grpc.aio.insecure_channel(suite.addresses[Service.EXECUTOR]) as channel,
        SchedulerAdmin(suite.addresses[Service.SCHEDULER]) as scheduler,
    ):
        while True:
            held = suite.handles[Service.GATEWAY].in_use()  # type: ignore[attr-defined]
            now = await ExecutorServiceStub(channel).GetStatus(executor_pb2.GetStatusRequest())
            there = await scheduler.status()
            left = (
                *(held.requests, held.tokens, held.num_bytes, held.active, held.waiting, held.running),
                *(now.num_running, now.num_waiting, now.num_slots_in_use, now.num_blocks_in_use),
                *(there.num_running, there.num_displaced, *(each.num_requests for each in there.waiting.values())),
            )
            if not any(left) and len(there.executors) == 1:
                return
            await asyncio.sleep(0.05)


async def test_no_call_harms_a_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference.install(tmp_path)
    anywhere = {"listen": "127.0.0.1:0"}
    settings = load_settings(
        overrides={
            "models": {"home": tmp_path},
            "transport": {"max_message_bytes": MESSAGE_BYTES},
            "gateway": {**anywhere, "preprocess": "127.0.0.1:0"},
            "preprocess": anywhere,
            "scheduler": anywhere,
            "executor": {
                **anywhere,
                "engine": "reference",
                "models": (reference.NAME,),
                "reference_step_ms": 5,
                "num_slots": 512,
                "step_tokens": 2048,
            },
            "encoder": {"model": ""},
            "results": {"background_s": 5},
        }
    )
    caplog.set_level(logging.ERROR)
    async with running(settings) as suite, AsyncClient(suite.gateway) as client:
        over, numbers = asyncio.Event(), itertools.count()
        targets = [
            (grpc.aio.insecure_channel(suite.addresses[name]), method)
            for name, module in SERVICES.items()
            for service in module.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        ]
        streams = [target for target in targets if target[1].client_streaming]
        done: Counter[str] = Counter()
        seen: Counter[str] = Counter()

        async def fuzz() -> None:
            while done.total() < CASES:
                number = next(numbers)
                turn = targets if number % 4 == 0 else streams
                channel, method = turn[(number // 4) % len(turn)]
                cases, reasons = await call(channel, method, number)
                done[method.full_name] += cases
                seen.update(reasons)

        async with asyncio.TaskGroup() as tasks:
            answering = [tasks.create_task(good(client, number, over)) for number in range(GOOD_STREAMS)]
            async with asyncio.TaskGroup() as fuzzers:
                for _ in range(AT_ONCE):
                    fuzzers.create_task(fuzz())
            over.set()
        assert all(task.result() for task in answering)
        assert all(done[method.full_name] for _, method in targets), done
        await nothing_left(suite)
        for channel, _ in targets:
            await channel.close()
        print(done, seen)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
