"""The client for those who run a scheduler: what it does now, and its settings while it runs."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import grpc

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerAdminServiceStub
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.core.errors import Unavailable
from headrace.core.request import Precision, QosClass
from headrace.core.role import Role

_Answer = TypeVar("_Answer")

ANSWER_S = 10.0
"""Longest wait for an answer."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits of a class; tokens are those of prompts and of the most that their answers can have."""

    num_requests: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """An executor as the scheduler sees it. In use is what is promised; `load` is the larger share of the two."""

    executor_id: str
    address: str
    num_slots_in_use: int
    num_slots: int
    num_blocks_in_use: int
    num_blocks: int
    draining: bool
    load: float


@dataclass(frozen=True, slots=True)
class StepModel:
    """What a step of a model takes: `step_ms + decode_ms * decodes + prefill_token_ms * prefill tokens`."""

    model: str
    step_ms: float
    decode_ms: float
    prefill_token_ms: float
    num_steps: int
    precision: Precision
    architecture: str


@dataclass(frozen=True, slots=True)
class PaddedModel:
    """A model's padded batches: `fill` is the share of computed tokens that are real, `utilisation` that of rows."""

    model: str
    batches: int
    fill: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """What a scheduler does now. `tally` says where the submissions since its start went, by name of the fate."""

    waiting: Mapping[QosClass, Waiting]
    num_running: int
    num_displaced: int
    tally: Mapping[str, int]
    executors: tuple[ExecutorStatus, ...]
    step_models: tuple[StepModel, ...]
    padded_models: tuple[PaddedModel, ...]


class SchedulerAdmin:
    """Calls a scheduler. `async with` closes the channel. Errors are those of headrace.core.errors."""

    def __init__(self, address: str, transport: TransportSettings | None = None) -> None:
        self._address = address
        self._channel = open_channel(address, transport or TransportSettings(), Role.SCHEDULER)
        self._stub = SchedulerAdminServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def settings(self) -> dict[str, str]:
        """All that can be set while it runs, by name, with the values in effect."""
        response = await self._answer(self._stub.GetSettings(pb.GetSettingsRequest(), timeout=ANSWER_S))
        return dict(sorted(response.settings.items()))

    async def set(self, changes: Mapping[str, str]) -> dict[str, str]:
        """Changes settings and returns all values in effect. Raises InvalidRequest, having changed nothing."""
        call = self._stub.SetSettings(pb.SetSettingsRequest(settings=changes), timeout=ANSWER_S)
        return dict(sorted((await self._answer(call)).settings.items()))

    async def status(self) -> SchedulerStatus:
        """What waits, what runs where, and what has been learned."""
        return _status(await self._answer(self._stub.GetStatus(pb.GetStatusRequest(), timeout=ANSWER_S)))

    async def _answer(self, call: Awaitable[_Answer]) -> _Answer:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            known = from_rpc_error(error)
            if type(known) is Unavailable or error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise Unavailable(f"no scheduler answers at {self._address}") from error
            raise known from error


def _status(response: pb.GetStatusResponse) -> SchedulerStatus:
    known = {int(qos): qos for qos in QosClass}
    return SchedulerStatus(
        waiting={
            known[each.qos_class]: Waiting(each.num_waiting, each.waiting_tokens)
            for each in response.classes
            if each.qos_class in known
        },
        num_running=response.num_running,
        num_displaced=response.num_displaced,
        tally={field.name: getattr(response.tally, field.name) for field in pb.Tally.DESCRIPTOR.fields},
        executors=tuple(
            ExecutorStatus(
                each.executor_id,
                each.address,
                each.num_slots_in_use,
                each.num_slots,
                each.num_blocks_in_use,
                each.num_blocks,
                each.draining,
                each.load,
            )
            for each in response.executors
        ),
        step_models=tuple(
            StepModel(
                each.model,
                each.step_ms,
                each.decode_ms,
                each.prefill_token_ms,
                each.num_steps,
                Precision.known(each.precision),
                each.architecture,
            )
            for each in response.step_models
        ),
        padded_models=tuple(
            PaddedModel(each.model, each.batches, each.fill, each.utilisation) for each in response.padded_models
        ),
    )
