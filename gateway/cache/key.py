"""Which answers are the same: the key of one in its tenant's cache. Pure."""

import hashlib
import struct

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.gateway.generation import Wish

FORM = b"1"
"""Of what is kept; another form has other keys."""


def key_of(request: pb.GenerateRequest, wish: Wish, tenant: str) -> str | None:
    """None where the same request may be answered otherwise the next time: drawn, and no seed given.

    The key is of all that an answer depends on: the model by its digest, the prompt, the sampling settings and the
    wish for a precision. Who asks by which id, how urgently and under which promise is no part of it.
    """
    sampling = wish.sampling
    if not sampling.greedy and not request.sampling.HasField("seed"):
        return None
    asked = pb.GenerateRequest()
    asked.CopyFrom(request)
    for name in ("model", "request_id", "qos_class", "sla", "cacheable"):
        asked.ClearField(name)
    if sampling.greedy:
        asked.sampling.ClearField("seed")
    digest = hashlib.sha256()
    for part in (FORM, tenant.encode(), wish.model.digest.encode(), asked.SerializeToString(deterministic=True)):
        digest.update(struct.pack("<Q", len(part)) + part)  # no two rows of parts look alike
    return digest.hexdigest()
