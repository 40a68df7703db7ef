"""One table between errors and gRPC status, used by servers, clients and the faults inside frames.

A status carries google.rpc.ErrorInfo (reason, and field, limit and category as metadata) and, for overload, RetryInfo.
"""

from collections.abc import Iterable
from typing import cast

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from headrace.api.types.v1.types_pb2 import Fault
from headrace.core import errors

DOMAIN = "headrace"
DEFAULT_RETRY_S = 0.5
MAX_STATUS_BYTES = 7_500
"""Of message and details as they go out. gRPC takes 8 KiB of metadata for sure; up to 16 KiB it refuses at random."""
_ELLIPSIS = "\u2026"

_CODES: list[tuple[type[errors.HeadraceError], grpc.StatusCode]] = [
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.ScreenRejected, grpc.StatusCode.PERMISSION_DENIED),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    (errors.EngineNotReady, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.DeadlineMissed, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Cancelled, grpc.StatusCode.CANCELLED),
]


def code_of(error: errors.HeadraceError) -> grpc.StatusCode:
    """The gRPC status of an error; INTERNAL where the table has none."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def to_status(error: errors.HeadraceError) -> Status:
    """The rich status that goes out with the call's trailing metadata. A message that is too long for it is cut."""
    info = ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in (("field", error.field), ("limit", error.limit), ("category", error.category)):
        if value:
            info.metadata[key] = value
    status = Status(code=code_of(error).value[0])
    details = [info]
    if isinstance(error, errors.Overloaded):
        delay = Duration()
        delay.FromMilliseconds(round((error.retry_after_s or DEFAULT_RETRY_S) * 1000))
        details.append(RetryInfo(retry_delay=delay))
    for detail in details:
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    status.message = _fitting(error.message, MAX_STATUS_BYTES - status.ByteSize())
    return status


def _fitting(message: str, room: int) -> str:
    """The message, or its beginning, which goes out twice: percent-encoded, and as it is in the details."""
    cost, kept = 0, 0
    for place, letter in enumerate(message):
        cost += _cost(letter)
        if cost > room:
            return message[:kept] + _ELLIPSIS
        if cost <= room - _cost(_ELLIPSIS):
            kept = place + 1
    return message


def _cost(letter: str) -> int:
    data = letter.encode()
    return len(data) + (1 if " " <= letter <= "~" and letter != "%" else 3 * len(data))


def from_rpc_error(call: grpc.RpcError | grpc.aio.AioRpcError) -> errors.HeadraceError:
    """The error that a failed call stands for. A status from elsewhere (transport, proxy) takes the nearest kind."""
    code, message = call.code(), call.details() or ""
    info, retry_after_s = ErrorInfo(), None
    status = _rich_status(call)
    for detail in status.details if status else ():
        if detail.Is(ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(RetryInfo.DESCRIPTOR):
            retry = RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    kind = errors.ERROR_BY_REASON.get(info.reason) if info.domain == DOMAIN else None
    kind = kind or next((error for error, known in _CODES if known is code), errors.EngineFault)
    return kind(
        message,
        field=info.metadata.get("field", ""),
        limit=info.metadata.get("limit", ""),
        retry_after_s=retry_after_s,
        category=info.metadata.get("category", ""),
    )


def said_by_service(call: grpc.RpcError | grpc.aio.AioRpcError) -> bool:
    """Whether one of our services ended the call so, and not the transport for want of one."""
    status = _rich_status(call)
    return status is not None and any(detail.Is(ErrorInfo.DESCRIPTOR) for detail in status.details)


def _rich_status(call: grpc.RpcError | grpc.aio.AioRpcError) -> Status | None:
    metadata = cast(Iterable[tuple[str, bytes]], call.trailing_metadata() or ())
    packed = next((value for key, value in metadata if key == "grpc-status-details-bin"), None)
    if packed is None:
        return None
    try:
        return Status.FromString(packed)
    except DecodeError:  # a proxy may put anything there; code and message still stand
        return None


def to_fault(error: errors.HeadraceError) -> Fault:
    """The error as a member of a frame."""
    return Fault(
        reason=error.reason,
        message=error.message,
        field=error.field,
        limit=error.limit,
        retry_after_ms=round((error.retry_after_s or 0) * 1000),
    )


def from_fault(fault: Fault) -> errors.HeadraceError:
    """The error that a frame's fault stands for."""
    kind = errors.ERROR_BY_REASON.get(fault.reason, errors.EngineFault)
    return kind(fault.message, field=fault.field, limit=fault.limit, retry_after_s=fault.retry_after_ms / 1000 or None)


async def abort(context: grpc.aio.ServicerContext, error: errors.HeadraceError) -> None:  # type: ignore[type-arg]
    """Ends the call with the error's status; never returns."""
    await context.abort_with_status(rpc_status.to_status(to_status(error)))
