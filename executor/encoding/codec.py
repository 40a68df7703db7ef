"""Encode members of Execute frames to tasks, what became of them back. Proto types end here."""

import time

import numpy as np

from headrace.api.executor.v1.executor_pb2 import Encode, Encoded
from headrace.api.scheduler.v1.scheduler_pb2 import LoadedModel, Padding
from headrace.chassis.status import to_fault
from headrace.core.errors import InvalidRequest
from headrace.executor.encoding.lengths import ALIGN_TOKENS
from headrace.executor.encoding.task import Done, Pooling, Task
from headrace.executor.engines.encoder import EncoderSpec


def to_task(encode: Encode, session: int) -> Task:
    """Raises InvalidRequest where the payload is no token array or the pooling is unknown."""
    if not encode.request_id:
        raise InvalidRequest("a text without a request id", field="request_id", limit="not empty")
    if len(encode.token_ids) % 4 or not encode.token_ids:
        raise InvalidRequest("token_ids is no array of uint32", field="token_ids", limit="multiple of 4 bytes")
    token_ids = np.frombuffer(encode.token_ids, "<u4")
    pooling = encode.pooling or Pooling.MEAN
    if pooling not in set(Pooling):
        raise InvalidRequest(f"pooling {pooling} is unknown", field="pooling", limit=f"0..{max(Pooling)}")
    return Task(
        session=session,
        request_id=encode.request_id,
        token_ids=token_ids,
        first_tokens=encode.first_tokens or len(token_ids),
        batch_id=encode.batch_id,
        batch_size=encode.batch_size,
        row_tokens=encode.padded_tokens,
        scores=encode.scores,
        pooling=Pooling(pooling),
        normalize=encode.normalize,
        dimensions=encode.dimensions,
        deadline=time.monotonic() + encode.deadline_ms / 1000 if encode.deadline_ms else None,
        trace=encode.trace,
        batch_trace=encode.batch_trace,
        received_ns=time.time_ns(),
    )


def to_encoded(done: Done) -> Encoded:
    """One text's values or failure as a member of a frame."""
    encoded = Encoded(request_id=done.task.request_id)
    if done.error is not None:
        encoded.fault.CopyFrom(to_fault(done.error))
    elif done.values is not None:
        encoded.values = done.values.astype("<f4", copy=False).tobytes()
    return encoded


def to_loaded(name: str, digest: str, spec: EncoderSpec, batch_rows: int) -> LoadedModel:
    return LoadedModel(
        name=name,
        precision=int(spec.precision),  # type: ignore[arg-type]
        digest=digest,
        context_tokens=spec.context_tokens,
        padding=Padding(batch_rows=batch_rows, align_tokens=ALIGN_TOKENS, packs=spec.packs),
    )
