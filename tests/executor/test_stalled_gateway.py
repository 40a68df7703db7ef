"""A gateway that does not read is cut off: its answers are not buffered for ever."""

import asyncio

import grpc
import pytest
from opentelemetry.trace import NoOpTracer

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.executor.v1.executor_pb2_grpc import ExecutorServiceStub, add_ExecutorServiceServicer_to_server
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.server import serve
from headrace.chassis.status import from_rpc_error
from headrace.core.errors import Overloaded
from headrace.executor.enlist import EnlistLink
from headrace.executor.service import ExecutorService

TRANSPORT = TransportSettings(drain_s=0.2)
MODEL = "m" * 100_000
"""Each fault names it: more than the transport buffers comes of a few starts."""


class Worker:
    """Keeps which sessions ended; takes no work, as every start here is for a model that nobody has."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[int] = asyncio.Queue()

    def cancel(self, session: int, request_id: str | None = None) -> None:
        self.ended.put_nowait(session)


@pytest.mark.parametrize("longest_write_s", [0, 0.05])  # 0: given up in its very first write
async def test_a_gateway_that_does_not_read_is_cut_off(longest_write_s: float) -> None:
    worker = Worker()
    async with open_channel("127.0.0.1:1", TRANSPORT) as nowhere:
        enlist = EnlistLink(nowhere, pb.ExecuteRequest, pb.ExecuteRequest)  # type: ignore[arg-type]
        service = ExecutorService(
            "e", MODEL, NoOpTracer(), enlist, TRANSPORT.max_message_bytes, longest_write_s, pieces_per_s=160
        )
        service.worker = worker  # type: ignore[assignment]
        async with (
            serve(
                "127.0.0.1:0", TRANSPORT, lambda server: add_ExecutorServiceServicer_to_server(service, server), ["x"]
            ) as handle,
            open_channel(handle.address, TRANSPORT) as channel,
        ):
            call = ExecutorServiceStub(channel).Execute()
            starts = [pb.Start(request_id=str(number), model="no") for number in range(200)]
            await call.write(pb.ExecuteRequest(starts=starts))  # each is answered by a long fault that nobody reads
            async with asyncio.timeout(30):
                await worker.ended.get()
            error = None
            async with asyncio.timeout(30):
                try:
                    async for _ in call:
                        pass
                except grpc.aio.AioRpcError as broken:
                    error = from_rpc_error(broken)
            assert isinstance(error, Overloaded)
