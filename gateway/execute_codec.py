"""What a gateway asks of an executor, as members of the Execute stream's frames."""

from headrace.api.executor.v1 import executor_pb2 as pb
from headrace.api.types.v1 import types_pb2
from headrace.chassis.constraint import put_constraint
from headrace.chassis.telemetry import to_frame
from headrace.core.request import Sampling
from headrace.gateway.encoding import Encoding
from headrace.gateway.generation import Generation, Placement, left_ms


def to_request(generation: Generation | Encoding, placement: Placement, now: float) -> pb.ExecuteRequest:
    """The frame that starts it; `now` is on the event loop's clock."""
    if isinstance(generation, Generation):
        return pb.ExecuteRequest(starts=[_start(generation, placement, now)])
    return pb.ExecuteRequest(encodes=[_encode(generation, placement, now)])


def _encode(encoding: Encoding, placement: Placement, now: float) -> pb.Encode:
    return pb.Encode(
        request_id=encoding.wire_id,
        model=encoding.model.name,
        batch_id=placement.batch_id,
        batch_size=placement.batch_size,
        padded_tokens=placement.padded_tokens,
        token_ids=encoding.token_ids.astype("<u4", copy=False).tobytes(),
        first_tokens=encoding.first_tokens,
        scores=encoding.readout.scores,
        pooling=encoding.readout.pooling,  # type: ignore[arg-type]
        normalize=encoding.readout.normalize,
        dimensions=encoding.readout.dimensions,
        deadline_ms=left_ms(encoding.deadline, now),
        trace=to_frame(encoding.trace),
        batch_trace=to_frame(placement.batch_trace),
    )


def _start(generation: Generation, placement: Placement, now: float) -> pb.Start:
    return pb.Start(
        request_id=generation.wire_id,
        model=generation.model.name,
        precision=int(placement.precision),  # type: ignore[arg-type]
        token_ids=generation.token_ids.astype("<u4", copy=False).tobytes(),
        answer_token_ids=generation.answer_token_ids,
        ended_answers=generation.ended_answers,
        sampling=_sampling(generation.sampling),
        priority=int(generation.qos),
        deadline_ms=left_ms(generation.deadline, now),
        trace=to_frame(generation.trace),
        batch_trace=to_frame(placement.batch_trace),
        batch_id=placement.batch_id,
        displaced=placement.displaced,
        tenant=generation.tenant,
    )


def _sampling(sampling: Sampling) -> types_pb2.Sampling:
    """All but the stop strings: those are text, and text is the gateway's."""
    proto = types_pb2.Sampling(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        stop_token_ids=sampling.stop_token_ids,
        logprobs=sampling.logprobs,
        n=sampling.n,
        ignore_eos=sampling.ignore_eos,
        logit_bias=dict(sampling.logit_bias),
    )
    put_constraint(proto, sampling.constraint)
    return proto
