"""Readiness by the standard protocol grpc.health.v1, for the server as a whole ('') and each of its services.

Not the servicer of grpcio-health-checking: there a watcher that leaves blinds the others, and one that stays keeps
the server from leaving before its bound.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from headrace.core.errors import NotFound

_Context = grpc.aio.ServicerContext[pb.HealthCheckRequest, pb.HealthCheckResponse]


class Health(health_pb2_grpc.HealthServicer):
    """Not ready until `set_ready(True)`; `leave` ends every Watch."""

    def __init__(self, services: Sequence[str]) -> None:
        self._names = frozenset(("", *services))
        self._ready = False
        self._left = False
        self._changed = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self._ready

    def set_ready(self, ready: bool) -> None:
        self._ready = ready
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def leave(self) -> None:
        self._left = True
        self.set_ready(False)

    async def Check(self, request: pb.HealthCheckRequest, context: _Context) -> pb.HealthCheckResponse:
        if request.service not in self._names:
            raise NotFound(f"no service {request.service!r} here", field="service")
        return self._answer(request.service)

    async def Watch(self, request: pb.HealthCheckRequest, context: _Context) -> AsyncIterator[pb.HealthCheckResponse]:
        """The status now and after each change; a name that is not here is SERVICE_UNKNOWN, as the protocol has it."""
        told = None
        while True:
            changed = self._changed
            answer = self._answer(request.service)
            if answer != told:
                yield answer
                told = answer
            if self._left:
                return
            await changed.wait()

    def _answer(self, name: str) -> pb.HealthCheckResponse:
        if name not in self._names:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        status = pb.HealthCheckResponse.SERVING if self._ready else pb.HealthCheckResponse.NOT_SERVING
        return pb.HealthCheckResponse(status=status)
