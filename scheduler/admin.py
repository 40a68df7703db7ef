"""For those who run the scheduler: its settings, read and changed while it runs, and what it does now."""

import logging
from typing import Any

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.scheduler.v1.scheduler_pb2_grpc import SchedulerAdminServiceServicer
from headrace.core.errors import InvalidRequest
from headrace.core.step_model import StepModel
from headrace.scheduler.loop import SchedulerLoop
from headrace.scheduler.policy.limits import LIVE, live_values
from headrace.scheduler.policy.prediction import StepKind
from headrace.scheduler.policy.registry import Executor
from headrace.scheduler.policy.state import State

log = logging.getLogger(__name__)

MAX_CHANGES_BYTES = 512
"""Of one SetSettings: more than all settings take. The answer to it names every fault, and must fit a status."""


class SchedulerAdminService(SchedulerAdminServiceServicer):
    """Reads and changes through the loop, which owns the state."""

    def __init__(self, loop: SchedulerLoop) -> None:
        self._loop = loop

    async def GetSettings(self, request: pb.GetSettingsRequest, context: Any) -> pb.GetSettingsResponse:
        return pb.GetSettingsResponse(settings=live_values(self._loop.observed().limits))

    async def SetSettings(self, request: pb.SetSettingsRequest, context: Any) -> pb.SetSettingsResponse:
        if len(request.settings) > len(LIVE) or request.ByteSize() > MAX_CHANGES_BYTES:
            limit = f"{len(LIVE)} settings in {MAX_CHANGES_BYTES} bytes"
            raise InvalidRequest(f"too many or too long changes: at most {limit}", field="settings", limit=limit)
        wanted = dict(sorted(request.settings.items()))  # a map on the wire has no order, a refusal should have one
        before, after = map(live_values, self._loop.configure(wanted))
        if changes := [f"{name} {old} -> {after[name]}" for name, old in before.items() if old != after[name]]:
            log.info("settings changed: %s", ", ".join(changes))
        return pb.SetSettingsResponse(settings=after)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        return to_status(self._loop.observed())


def to_status(state: State) -> pb.GetStatusResponse:
    """What waits, what runs where, and what has been learned."""
    executors, tally = state.registry.executors.values(), state.tally
    num_displaced = sum(len(executor.ledger.paused) for executor in executors)
    return pb.GetStatusResponse(
        classes=[
            pb.ClassStatus(
                qos_class=int(qos),  # type: ignore[arg-type]
                num_waiting=backlog.num_requests,
                waiting_tokens=backlog.num_tokens,
            )
            for qos, backlog in state.queues.backlog.items()
        ],
        num_running=sum(len(executor.ledger.reservations) for executor in executors) - num_displaced,
        num_displaced=num_displaced,
        tally=pb.Tally(
            submitted=tally.submitted,
            refused=tally.refused,
            withdrawn=tally.withdrawn,
            finished=tally.finished,
            lost=tally.lost,
            unstarted=tally.unstarted,
            displaced=tally.displaced,
        ),
        executors=[_executor(executor) for executor in executors],
        step_models=[_step_model(*each) for each in sorted(state.predictor.steps.items()) if each[1].num_samples],
        padded_models=[
            pb.PaddedModelStatus(model=name, batches=each.batches, fill=each.fill, utilisation=each.utilisation)
            for name, each in sorted(state.padded.items())
        ],
    )


def _executor(executor: Executor) -> pb.ExecutorStatus:
    ledger = executor.ledger
    return pb.ExecutorStatus(
        executor_id=executor.executor_id,
        address=executor.address,
        num_slots_in_use=ledger.num_slots,
        num_slots=ledger.shape.num_slots,
        num_blocks_in_use=ledger.num_blocks,
        num_blocks=ledger.shape.num_blocks,
        draining=executor.draining,
        load=ledger.load,
        models=sorted({loaded.name for loaded in executor.models}),
    )


def _step_model(kind: StepKind, model: StepModel) -> pb.StepModelStatus:
    name, precision, architecture = kind
    step_s, decode_s, prefill_token_s = model.coefficients
    return pb.StepModelStatus(
        model=name,
        precision=int(precision),  # type: ignore[arg-type]
        architecture=architecture,
        step_ms=step_s * 1000,
        decode_ms=decode_s * 1000,
        prefill_token_ms=prefill_token_s * 1000,
        num_steps=model.num_samples,
    )
