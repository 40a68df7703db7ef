"""Frames of the Execute stream to jobs, deltas to frames. Proto types end here."""

import time
from collections.abc import Sequence

import numpy as np

from headrace.api.executor.v1.executor_pb2 import MemoryStatus, Output, Start
from headrace.api.types.v1.types_pb2 import Logprobs, TokenLogprob
from headrace.api.types.v1.types_pb2 import Sampling as SamplingProto
from headrace.chassis.constraint import from_sampling
from headrace.chassis.status import to_fault
from headrace.core.errors import InvalidRequest
from headrace.core.request import Sampling
from headrace.executor.kv.blocks import PoolState
from headrace.executor.sequence import Job
from headrace.executor.step_result import Delta

_OPTIONAL = {
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logprobs",
    "n",
}


def to_job(start: Start, session: int, *, by_tenant: bool = False) -> Job:
    """With `by_tenant` the prompt shares no cache with another tenant's. Raises InvalidRequest where the payload is no
    token array or the settings lack what the gateway always sets."""
    if not start.request_id:
        raise InvalidRequest("a start without a request id", field="request_id", limit="not empty")
    if len(start.token_ids) % 4:
        raise InvalidRequest("token_ids is no array of uint32", field="token_ids", limit="multiple of 4 bytes")
    if any(len(known) % 4 for known in start.answer_token_ids):
        raise InvalidRequest(
            "answer_token_ids is no array of uint32", field="answer_token_ids", limit="multiple of 4 bytes"
        )
    if not start.sampling.HasField("max_tokens"):
        raise InvalidRequest("sampling.max_tokens is not set", field="sampling.max_tokens", limit="set")
    return Job(
        session=session,
        request_id=start.request_id,
        prompt_ids=np.frombuffer(start.token_ids, "<u4"),
        sampling=to_sampling(start.sampling),
        priority=start.priority,
        deadline=time.monotonic() + start.deadline_ms / 1000 if start.deadline_ms else None,
        trace=(start.trace, start.batch_trace, start.batch_id),
        scope=start.tenant.encode() if by_tenant else b"",
        displaced=tuple((each.request_id, each.drop_kv) for each in start.displaced),
        answers=tuple(np.frombuffer(known, "<u4") for known in start.answer_token_ids),
        ended=frozenset(start.ended_answers),
    )


def to_sampling(proto: SamplingProto) -> Sampling:
    """Settings as they came; what is not set takes its neutral value. Stop strings are the gateway's business."""
    values = {field.name: value for field, value in proto.ListFields() if field.name in _OPTIONAL}
    return Sampling(
        max_tokens=proto.max_tokens,
        min_tokens=proto.min_tokens,
        stop_token_ids=tuple(proto.stop_token_ids),
        ignore_eos=proto.ignore_eos,
        constraint=from_sampling(proto),
        logit_bias=tuple(sorted(proto.logit_bias.items())),
        **values,
    )


def to_memory(state: PoolState, block_bytes: int) -> MemoryStatus:
    return MemoryStatus(
        block_bytes=block_bytes,
        mapped_bytes=state.num_mapped * block_bytes,
        used_bytes=state.num_used * block_bytes,
        cached_bytes=state.num_cached * block_bytes,
        fragmentation=state.fragmentation,
        cache_age_s=state.cache_age_s,
        prompt_tokens=state.prompt_tokens,
        cached_prompt_tokens=state.cached_tokens,
    )


def to_output(deltas: Sequence[Delta]) -> Output:
    """What one answer has had, in order, as a member of a frame."""
    last = deltas[-1]
    output = Output(request_id=last.job.request_id, index=last.index, finish_reason=int(last.finish))  # type: ignore[arg-type]
    choices = [delta.choice for delta in deltas if delta.choice is not None]
    output.token_ids = b"".join(choice.token_id.to_bytes(4, "little") for choice in choices)
    if last.job.sampling.logprobs is not None:
        output.logprobs.extend(
            Logprobs(
                chosen=TokenLogprob(token_id=choice.token_id, logprob=choice.logprob),
                top=[TokenLogprob(token_id=token, logprob=logprob) for token, logprob in choice.top],
            )
            for choice in choices
        )
    if last.sequence is not None:
        output.cached_prompt_tokens = last.sequence.cached_tokens
    if last.error is not None:
        output.fault.CopyFrom(to_fault(last.error))
    return output
