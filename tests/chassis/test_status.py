"""An error that leaves one process is the same error in the next, as a call's status and as a frame's fault."""

from string import printable
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status

from headrace.api.types.v1.types_pb2 import Fault
from headrace.chassis.status import DEFAULT_RETRY_S, code_of, from_fault, from_rpc_error, to_fault
from headrace.core import errors

METHOD = "/test.v1.TestService/Call"
SAFE = "".join(letter for letter in printable if letter.isprintable() and letter != "%")
CODES = {
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "PERMISSION_DENIED": grpc.StatusCode.PERMISSION_DENIED,
    "SCREEN_REJECTED": grpc.StatusCode.PERMISSION_DENIED,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "MODEL_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "RESULT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "OVERLOADED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "POOL_EXHAUSTED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TENANT_OVER_LIMIT": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "NO_EXECUTOR": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "UNSUPPORTED": grpc.StatusCode.UNIMPLEMENTED,
    "ENGINE_NOT_READY": grpc.StatusCode.FAILED_PRECONDITION,
    "DEADLINE_MISSED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "CANCELLED": grpc.StatusCode.CANCELLED,
    "DEVICE_FAULT": grpc.StatusCode.UNAVAILABLE,
    "ENGINE_FAULT": grpc.StatusCode.INTERNAL,
    "CONFIG": grpc.StatusCode.INTERNAL,
}


def facts(error: errors.HeadraceError) -> tuple[object, ...]:
    return type(error), error.message, error.field, error.limit


async def failure(channel: grpc.aio.Channel, payload: bytes = b"") -> errors.HeadraceError:
    """The error of a unary call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(METHOD)(payload)
    return from_rpc_error(caught.value)


def test_the_table_has_every_reason_once() -> None:
    assert {reason: code_of(kind("")) for reason, kind in errors.ERROR_BY_REASON.items()} == CODES


@pytest.mark.parametrize("reason", CODES)
async def test_every_error_survives_a_call(serving: Any, reason: str) -> None:
    sent = errors.ERROR_BY_REASON[reason]("what: 100 % wörds", field="sampling.n", limit="1..16", retry_after_s=1.25)

    async def call(request: Empty, context: object) -> Empty:
        raise sent

    handler = grpc.unary_unary_rpc_method_handler(call, Empty.FromString, Empty.SerializeToString)
    async with serving({"Call": handler}) as channel:
        received = await failure(channel)
    assert facts(received) == facts(sent)
    assert received.retry_after_s == (1.25 if isinstance(sent, errors.Overloaded) else None)


@pytest.mark.parametrize("letter", ["x", "\n", "\u00e9", "\U0001f600"])
async def test_a_long_message_is_cut_to_what_every_peer_takes(serving: Any, letter: str) -> None:
    """gRPC takes 8 KiB of metadata for sure; between that and 16 KiB it refuses at random."""
    sent = errors.InvalidRequest("begins so: " + letter * 10_000, field="settings", limit="short")

    async def call(request: Empty, context: object) -> Empty:
        raise sent

    handler = grpc.unary_unary_rpc_method_handler(call, Empty.FromString, Empty.SerializeToString)
    async with serving({"Call": handler}) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(METHOD)(b"")
    received = from_rpc_error(caught.value)
    assert facts(received) == (errors.InvalidRequest, received.message, "settings", "short")
    assert received.message[:-1] == sent.message[: len(received.message) - 1]
    assert received.message[-1] == "\u2026"
    packed = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    assert 7_000 < len(packed) + len(quote(received.message, safe=SAFE)) < 7_900


async def test_overload_always_says_when_to_try_again(serving: Any) -> None:
    async def call(request: Empty, context: object) -> Empty:
        raise errors.QueueFull("full")

    handler = grpc.unary_unary_rpc_method_handler(call, Empty.FromString, Empty.SerializeToString)
    async with serving({"Call": handler}) as channel:
        assert (await failure(channel)).retry_after_s == DEFAULT_RETRY_S


@pytest.mark.parametrize("reason", CODES)
def test_every_error_survives_a_frame(reason: str) -> None:
    sent = errors.ERROR_BY_REASON[reason]("what", field="f", limit="l", retry_after_s=0.25)
    received = from_fault(Fault.FromString(to_fault(sent).SerializeToString()))
    assert (*facts(received), received.retry_after_s) == (*facts(sent), 0.25)


def test_a_fault_without_a_delay_or_of_an_unknown_reason() -> None:
    assert from_fault(to_fault(errors.NoExecutor("none"))).retry_after_s is None
    assert type(from_fault(Fault(reason="OF_A_LATER_VERSION", message="what"))) is errors.EngineFault


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.NOT_FOUND, errors.NotFound),
        (grpc.StatusCode.DATA_LOSS, errors.EngineFault),
    ],
)
@pytest.mark.parametrize("details", [b"", b"\xff\xff", Status(code=1).SerializeToString()])
def test_a_status_from_elsewhere_is_the_nearest_kind(
    code: grpc.StatusCode, kind: type[errors.HeadraceError], details: bytes
) -> None:
    trailing = grpc.aio.Metadata(*([("grpc-status-details-bin", details)] if details else []))
    error = from_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details="from a proxy"))
    assert (type(error), error.message) == (kind, "from a proxy")


async def test_nobody_at_the_address_is_unavailable() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        assert isinstance(await failure(channel), errors.Unavailable)
