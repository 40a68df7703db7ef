"""Screening in a preprocess service: one call a request, which gRPC carries side by side on one connection."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
from opentelemetry import trace
from opentelemetry.context import Context

from headrace.api.preprocess.v1 import preprocess_pb2 as pb
from headrace.api.preprocess.v1 import preprocess_pb2_grpc
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.chassis.telemetry import to_frame
from headrace.core.role import Role
from headrace.core.screening import Verdict


class RemoteScreener:
    """Judges texts by the service, which records span preprocess.screen."""

    def __init__(self, stub: "preprocess_pb2_grpc.PreprocessServiceAsyncStub", budget_s: float) -> None:
        self._stub = stub
        self._budget_s = budget_s

    async def screen(self, request_id: str, texts: Sequence[str], parent: Context) -> Verdict:
        """The verdict on the worst part of the texts. Raises what the service raises, and DeadlineMissed."""
        span = trace.get_current_span(parent).get_span_context()
        request = pb.ScreenRequest(request_id=request_id, texts=texts, trace=to_frame(span))
        try:
            response = await self._stub.Screen(request, timeout=self._budget_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return Verdict(response.verdict.category, response.verdict.score, response.verdict.model)


@asynccontextmanager
async def open_remote_screener(
    address: str, transport: TransportSettings, budget_s: float
) -> AsyncIterator[RemoteScreener]:
    """A screener over the service at `address`, which need not be up yet."""
    async with open_channel(address, transport, Role.PREPROCESS) as channel:
        yield RemoteScreener(preprocess_pb2_grpc.PreprocessServiceStub(channel), budget_s)
