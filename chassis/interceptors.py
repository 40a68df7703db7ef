"""Every call of every server: bytes that do not decode and errors raised become the right status.

Servicers hold no try/except: they raise core errors. What is not one of those is a fault of ours: the caller gets
an id, the log gets the traceback under the same id.
"""

import inspect
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace.chassis.access import Access, Check
from headrace.chassis.status import abort
from headrace.core.errors import Cancelled, Draining, EngineFault, HeadraceError, InvalidRequest

log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class _Undecodable:
    error: InvalidRequest


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status, for all four kinds of call. With `access` a call must pass it first.
    Once `leaving`, refuses every new call."""

    def __init__(self, access: Access | None = None) -> None:
        self.leaving = False
        self._access = access

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        if self.leaving:
            return grpc.unary_stream_rpc_method_handler(_refuse_leaving)
        check = self._access.check(details.method) if self._access else None
        deserialise = _guarded(handler.request_deserializer) if handler.request_deserializer else None
        for kind, make in (
            ("unary_unary", grpc.unary_unary_rpc_method_handler),
            ("stream_unary", grpc.stream_unary_rpc_method_handler),
        ):
            if behaviour := getattr(handler, kind):
                return make(_answers_once(behaviour, check), deserialise, handler.response_serializer)
        for kind, make in (
            ("unary_stream", grpc.unary_stream_rpc_method_handler),
            ("stream_stream", grpc.stream_stream_rpc_method_handler),
        ):
            if behaviour := getattr(handler, kind):
                wrap = _answers_many if inspect.isasyncgenfunction(behaviour) else _writes_answers
                return make(wrap(behaviour, check), deserialise, handler.response_serializer)
        return handler


async def _refuse_leaving(request: bytes, context: _Context) -> AsyncIterator[bytes]:
    await abort(context, Draining("the service is leaving"))
    yield b""


def _answers_once(behaviour: Callable[..., Any], check: Check | None) -> Callable[[Any, _Context], Awaitable[Any]]:
    async def call(request: Any, context: _Context) -> Any:
        try:
            if check:
                check(context)
            return await behaviour(_checked(request), context)
        except Exception as error:
            await abort(context, as_error(error))

    return call


def _writes_answers(behaviour: Callable[..., Any], check: Check | None) -> Callable[[Any, _Context], Awaitable[Any]]:
    """For a handler that writes through its context: a coroutine, not a generator."""
    answer = _answers_once(behaviour, check)

    async def call(request: Any, context: _Context) -> Any:
        # By itself: where the first write is given up, gRPC would send this again with the status, and fail at both.
        await context.send_initial_metadata(())
        return await answer(request, context)

    return call


def _answers_many(
    behaviour: Callable[..., AsyncGenerator[Any, None]], check: Check | None
) -> Callable[[Any, _Context], AsyncIterator[Any]]:
    async def call(request: Any, context: _Context) -> AsyncIterator[Any]:
        try:
            if check:
                check(context)
            async with aclosing(behaviour(_checked(request), context)) as responses:
                async for response in responses:
                    yield response
        except Exception as error:
            await abort(context, as_error(error))

    return call


def as_error(error: Exception) -> HeadraceError:
    """The error that a caller may see. One that is not ours is logged with its traceback under an incident's id."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    gone = Cancelled("the caller has gone")  # it hung up a moment before the call's task was told so
    if isinstance(error, ExceptionGroup):  # a task group wraps what its tasks raise; the first failure ended it
        _, raised = error.split(grpc.aio.InternalError)
        if raised is None:
            return gone
        ours, others = raised.split(HeadraceError)
        if ours and not others:
            return _first(ours)
    if isinstance(error, grpc.aio.InternalError):  # what could not be written
        return gone
    if isinstance(error, HeadraceError):
        return error
    incident = secrets.token_hex(6)
    log.error("unexpected error, incident %s", incident, exc_info=error)
    return EngineFault(f"internal error, incident {incident}")


def _first(group: ExceptionGroup[HeadraceError]) -> HeadraceError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


def _checked(request: Any) -> Any:
    if isinstance(request, _Undecodable):
        raise request.error
    return _checked_stream(request) if hasattr(request, "__aiter__") else request


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if isinstance(request, _Undecodable):
            raise request.error
        yield request


def _guarded(deserialise: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """grpc answers INTERNAL where a request does not decode; a caller's bad bytes are the caller's fault."""

    def decode(data: bytes) -> Any:
        try:
            return deserialise(data)
        except DecodeError as error:
            owner = getattr(deserialise, "__self__", None)
            field = bad_utf8_field(data, owner.DESCRIPTOR) if owner is not None and hasattr(owner, "DESCRIPTOR") else ""
            what = f"{field} is not valid UTF-8" if field else f"the message does not decode: {error}"
            return _Undecodable(
                InvalidRequest(what, field=field or "message", limit="UTF-8" if field else "protobuf wire format")
            )

    return decode


def bad_utf8_field(data: bytes, descriptor: Descriptor) -> str:
    """The dotted path of the first string field in a message's bytes that is not UTF-8; '' if there is none."""
    message = Empty()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return ""
    fields = UnknownFieldSet(message)
    for unknown in (fields[position] for position in range(len(fields))):
        field = descriptor.fields_by_number.get(unknown.field_number)
        if field is None or not isinstance(unknown.data, bytes):
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            try:
                unknown.data.decode()
            except UnicodeDecodeError:
                return str(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            inner = bad_utf8_field(unknown.data, field.message_type)
            if inner:
                return f"{field.name}.{inner}"
    return ""
