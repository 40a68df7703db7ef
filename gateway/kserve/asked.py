"""What requests of both kinds have in common: id, class, precision, timeout, and the outputs that are wanted."""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headrace.api.inference import inference_pb2 as pb
from headrace.core.errors import InvalidRequest
from headrace.core.request import Precision, QosClass
from headrace.gateway.codec import MAX_NAME_CHARS
from headrace.gateway.kserve.parameters import UINT64, Parameters
from headrace.gateway.kserve.tensors import Place, place_of

QOS_BY_PRIORITY = {1: QosClass.REALTIME, 2: QosClass.NORMAL, 3: QosClass.BATCH}
"""Priority as the protocol counts it: 1 goes first; 0 is the default."""

_CLASSES = {qos.name.lower(): int(qos) for qos in QosClass}
_PRECISIONS = {precision.name.lower(): int(precision) for precision in Precision if precision}
_DRAWN_BYTES = 4
MAX_ID_CHARS = MAX_NAME_CHARS - 2 * _DRAWN_BYTES - 1
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True, slots=True)
class Asked:
    """`request_id` is unique where the caller's id need not be. `qos` and `precision` 0: the default; `timeout_s`
    None: the call's deadline alone. `outputs` are those named, with their places in shared memory."""

    request_id: str
    qos: int
    precision: int
    timeout_s: float | None
    outputs: Mapping[str, Place | None]


def read_asked(request: pb.ModelInferRequest, parameters: Parameters, known: Collection[str]) -> Asked:
    """Takes its parameters out. `known` are the model's outputs. Raises InvalidRequest."""
    if len(request.id) > MAX_ID_CHARS or not request.id.isprintable():
        limit = f"{MAX_ID_CHARS} printable characters"
        raise InvalidRequest(f"id must be {limit} at most", field="id", limit=limit)
    for name in _SEQUENCE:
        if parameters.has(name):
            raise InvalidRequest(
                f"parameters.{name}: no model here keeps state between requests",
                field=f"parameters.{name}",
                limit="left out",
            )
    priority = parameters.integer("priority", max(QOS_BY_PRIORITY))
    qos = parameters.choice("qos_class", _CLASSES)
    if priority and qos:
        raise InvalidRequest(
            "parameters.priority and parameters.qos_class say the same thing: one of them",
            field="parameters.priority",
            limit="priority or qos_class",
        )
    timeout_us = parameters.integer("timeout", UINT64)
    drawn = secrets.token_hex(_DRAWN_BYTES)
    return Asked(
        request_id=f"{request.id}.{drawn}" if request.id else secrets.token_hex(16),
        qos=qos or (int(QOS_BY_PRIORITY[priority]) if priority else 0),
        precision=parameters.choice("precision", _PRECISIONS) or 0,
        timeout_s=timeout_us / 1e6 if timeout_us else None,
        outputs=_outputs(request, known),
    )


def _outputs(request: pb.ModelInferRequest, known: Collection[str]) -> dict[str, Place | None]:
    outputs: dict[str, Place | None] = {}
    for position, wanted in enumerate(request.outputs):
        if wanted.name not in known or wanted.name in outputs:
            limit = ", ".join(known)
            raise InvalidRequest(
                f"outputs[{position}].name {wanted.name!r:.40} must be one of {limit}, once",
                field=f"outputs[{position}].name",
                limit=limit,
            )
        outputs[wanted.name] = place_of(wanted.parameters, f"outputs[{position}].parameters")
    return outputs
