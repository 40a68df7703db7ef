"""Which models executors have loaded, as the scheduler knows: a gateway hears of it with its first placement only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc

from headrace.api.scheduler.v1 import scheduler_pb2
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerAdminServiceStub
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.core.role import Role

if TYPE_CHECKING:
    from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerAdminServiceAsyncStub

ANSWER_S = 2.0
"""Longest wait for the scheduler's answer."""


class Loaded:
    """Asks the scheduler each time."""

    def __init__(self, stub: "SchedulerAdminServiceAsyncStub") -> None:
        self._stub = stub

    async def models(self) -> frozenset[str]:
        """By name; none where the scheduler does not answer in time."""
        try:
            status = await self._stub.GetStatus(scheduler_pb2.GetStatusRequest(), timeout=ANSWER_S)
        except grpc.RpcError:
            return frozenset()
        return frozenset(name for each in status.executors if not each.draining for name in each.models)


@asynccontextmanager
async def open_loaded(address: str, transport: TransportSettings) -> AsyncIterator[Loaded]:
    """A channel of its own to the scheduler, until the block ends."""
    async with open_channel(address, transport, Role.SCHEDULER) as channel:
        yield Loaded(SchedulerAdminServiceStub(channel))
