"""Between frames and the policy's values; proto types end here and in the servicer."""

from collections.abc import Iterable

from headrace.api.scheduler.v1 import scheduler_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.chassis.status import to_fault
from headrace.core.errors import HeadraceError, InvalidRequest
from headrace.core.prefix import MOST_PREFIXES
from headrace.core.request import Precision, QosClass
from headrace.core.step_model import StepSample
from headrace.scheduler.policy.commands import Dispatch, Member
from headrace.scheduler.policy.events import (
    ExecutorEnlisted,
    ExecutorReported,
    LoadedModel,
    Padding,
    Request,
)

_CLASSES: dict[int, QosClass] = {
    types_pb2.QOS_CLASS_UNSPECIFIED: QosClass.NORMAL,
    **{int(qos): qos for qos in QosClass},
}
MOST_ARCHITECTURE = 256
"""Characters of an architecture's name that are told apart."""
_PRECISIONS: dict[int, Precision] = {int(precision): precision for precision in Precision}


def to_request(submission: pb.Submission, gateway_id: str, serial: int) -> Request | InvalidRequest:
    """The submission's numbers, or what is wrong with a class or precision that this version does not know."""
    qos_class = _CLASSES.get(submission.qos_class)
    precision = _PRECISIONS.get(submission.precision)
    if qos_class is None:
        return InvalidRequest(f"{submission.qos_class} is no class", field="qos_class", limit="0..3")
    if precision is None:
        return InvalidRequest(f"{submission.precision} is no precision", field="precision", limit="0..4")
    # one answer's known tokens are computed like a prompt's; several share only the prompt's memory
    known_tokens = min(submission.answer_tokens, submission.max_output_tokens) if submission.n <= 1 else 0
    return Request(
        serial=serial,
        request_id=submission.request_id,
        gateway_id=gateway_id,
        model=submission.model,
        prompt_tokens=submission.prompt_tokens + known_tokens,
        max_output_tokens=submission.max_output_tokens - known_tokens,
        qos_class=qos_class,
        tenant=submission.tenant,
        n=submission.n or 1,
        precision=precision,
        deadline_s=submission.deadline_ms / 1000 if submission.deadline_ms else None,
        prefixes=tuple(submission.prefix_hashes[:MOST_PREFIXES]),
    )


def to_enlisted(enlistment: pb.Enlistment) -> ExecutorEnlisted:
    """A model in a precision that this version does not know serves only those who have no wish."""
    return ExecutorEnlisted(
        executor_id=enlistment.executor_id,
        address=enlistment.address,
        models=tuple(_to_loaded(model) for model in enlistment.models),
        num_slots=enlistment.num_slots,
        num_blocks=enlistment.num_blocks,
        block_tokens=enlistment.block_tokens,
        running_ids=tuple(enlistment.running_request_ids),
        paused_ids=tuple(enlistment.paused_request_ids),
        draining=enlistment.draining,
        architecture=enlistment.architecture[:MOST_ARCHITECTURE],
    )


def _to_loaded(model: pb.LoadedModel) -> LoadedModel:
    padding = None
    if model.HasField("padding"):
        padding = Padding(max(1, model.padding.batch_rows), max(1, model.padding.align_tokens), model.padding.packs)
    return LoadedModel(model.name, Precision.known(model.precision), model.context_tokens, padding)


def to_reported(executor_id: str, report: pb.ExecutorReport) -> ExecutorReported:
    return ExecutorReported(
        executor_id,
        tuple(report.started_request_ids),
        tuple(report.finished_request_ids),
        report.draining,
        output_tokens=tuple(report.finished_output_tokens),
        paused_ids=tuple(report.paused_request_ids),
        added_prefixes=tuple(report.added_prefix_hashes),
        removed_prefixes=tuple(report.removed_prefix_hashes),
        steps=tuple(StepSample(s.num_decodes, s.prefill_tokens, s.duration_us / 1e6) for s in report.steps),
    )


def to_placement(dispatch: Dispatch, member: Member, batch_trace: types_pb2.TraceContext) -> pb.Placement:
    return pb.Placement(
        request_id=member.request.request_id,
        executor_id=dispatch.executor_id,
        executor_address=dispatch.executor_address,
        batch_id=dispatch.batch_id,
        batch_size=len(dispatch.members),
        close_reason=int(dispatch.close_reason),  # type: ignore[arg-type]
        precision=int(member.precision),  # type: ignore[arg-type]
        batch_trace=batch_trace,
        padded_tokens=dispatch.padded_tokens,
        displaced=[types_pb2.Displacement(request_id=d.request_id, drop_kv=d.drop_kv) for d in member.displaced],
    )


def to_refusal(request_id: str, error: HeadraceError) -> pb.Refusal:
    return pb.Refusal(request_id=request_id, fault=to_fault(error))


def to_silent(executor_id: str, lease_s: float) -> pb.SilentExecutor:
    return pb.SilentExecutor(executor_id=executor_id, lease_ms=round(lease_s * 1000))


def to_response(answers: Iterable[pb.Placement | pb.Refusal | pb.SilentExecutor]) -> pb.SubmitResponse:
    """One frame with all that has gathered."""
    response = pb.SubmitResponse()
    for answer in answers:
        if isinstance(answer, pb.Placement):
            response.placements.append(answer)
        elif isinstance(answer, pb.SilentExecutor):
            response.silent_executors.append(answer)
        else:
            response.refusals.append(answer)
    return response
