"""Inference responses: what every answer to a request has in common, and where its tensors go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.api.inference import inference_pb2 as pb
from headrace.gateway.kserve.catalogue import VERSION
from headrace.gateway.kserve.tensors import Place, Tensor, WritePlace, add_output


@dataclass(frozen=True, slots=True)
class Reply:
    """`request_id` is the one in traces; `typed`: outputs as typed contents, else raw."""

    model: str
    id: str
    request_id: str
    typed: bool
    places: Mapping[str, Place | None]
    write: WritePlace

    def of(self, tensors: Sequence[Tensor], **parameters: str | int | bool) -> pb.ModelInferResponse:
        """Parameters that are '' are left out. Raises InvalidRequest where a tensor does not fit its place."""
        response = pb.ModelInferResponse(model_name=self.model, model_version=VERSION, id=self.id)
        for name, value in (("request_id", self.request_id), *parameters.items()):
            if isinstance(value, bool):
                response.parameters[name].bool_param = value
            elif isinstance(value, int):
                response.parameters[name].int64_param = value
            elif value:
                response.parameters[name].string_param = value
        for tensor in tensors:
            add_output(response, tensor, self.typed, self.places.get(tensor.name), self.write)
        return response
