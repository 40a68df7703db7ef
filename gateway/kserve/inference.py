"""One inference request from tensors to tensors: by the gateway's own Generate, Embed or Classify, with their
admission, tenants, quotas and traces.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from headrace.api.gateway.v1 import gateway_pb2
from headrace.api.inference import inference_pb2 as pb
from headrace.core.errors import ModelNotFound
from headrace.core.model import ModelInfo
from headrace.core.request import Precision
from headrace.gateway.codec import model_named
from headrace.gateway.kserve.asked import Asked
from headrace.gateway.kserve.call import Call, Context
from headrace.gateway.kserve.catalogue import VERSION, check_inputs
from headrace.gateway.kserve.encoding_codec import AskedTexts, classification_tensors, decode_texts, embedding_tensors
from headrace.gateway.kserve.generation_codec import Answers, AskedGeneration, decode_generation
from headrace.gateway.kserve.reply import Reply
from headrace.gateway.kserve.shared_memory import Regions
from headrace.gateway.kserve.statistics import Statistics
from headrace.gateway.kserve.tensors import Place, Tensor, is_typed, read_inputs
from headrace.gateway.kserve.wording import reworded
from headrace.gateway.ports import TextModels
from headrace.gateway.servicer import GatewayService
from headrace.gateway.tenants.caller import Caller


def model_of(name: str, model_version: str, texts: TextModels, caller: Caller) -> ModelInfo:
    """Raises ModelNotFound, also for a model that the caller's key does not show."""
    with reworded():
        model = model_named(name, texts)
    if not caller.may_see(name):
        raise ModelNotFound(f"no model {name!r} for this key", field="model_name")
    if model_version not in ("", VERSION):
        raise ModelNotFound(f"model {name!r} has version {VERSION} only", field="model_version", limit=VERSION)
    return model


class Inference:
    """The gateway's parts as requests use them."""

    def __init__(self, core: GatewayService, texts: TextModels, regions: Regions, statistics: Statistics) -> None:
        self._core = core
        self._texts = texts
        self._regions = regions
        self._statistics = statistics

    async def answers(
        self, request: pb.ModelInferRequest, context: Context, caller: Caller, may_stream: bool
    ) -> AsyncGenerator[pb.ModelInferResponse, None]:
        """One response, or with `may_stream` any number. Raises what fails the request, in this door's words."""

        def read(place: Place, field: str) -> bytes:
            return self._regions.read(caller.tenant, place.region, place.offset, place.byte_size, field)

        model = model_of(request.model_name, request.model_version, self._texts, caller)
        inputs = read_inputs(request, read)
        check_inputs(model, inputs)
        if model.kind == "decoder":
            generation = decode_generation(request, inputs, model, may_stream)
            reply, call = self._reply(request, generation.asked, caller), Call(context, generation.asked.timeout_s)
            answers = self._generate(generation, reply, call, caller, may_stream)
        else:
            texts = decode_texts(request, inputs, model)
            reply, call = self._reply(request, texts.asked, caller), Call(context, texts.asked.timeout_s)
            answers = self._encode(texts, reply, call, caller, may_stream)
        with reworded():
            async with aclosing(answers) as responses:
                async for response in responses:
                    yield response

    async def _generate(
        self, wanted: AskedGeneration, reply: Reply, call: Call, caller: Caller, may_stream: bool
    ) -> AsyncGenerator[pb.ModelInferResponse, None]:
        answers, precision = Answers(wanted), ""
        with self._statistics.request(reply.model, 1):
            async with aclosing(self._core.Generate(wanted.request, call, caller)) as pieces:
                async for piece in pieces:
                    answers.add(piece)
                    precision = precision or _precision(piece.precision)
                    if wanted.stream or answers.last is not None:
                        result = piece.result
                        yield reply.of(
                            answers.tensors(),
                            precision=precision,
                            result_handle=result.handle,
                            **({"result_offset": result.offset} if result.handle else {}),
                            **({"triton_final_response": answers.last is not None} if may_stream else {}),
                        )
                        answers = Answers(wanted)

    async def _encode(
        self, wanted: AskedTexts, reply: Reply, call: Call, caller: Caller, may_stream: bool
    ) -> AsyncGenerator[pb.ModelInferResponse, None]:
        with self._statistics.request(reply.model, len(wanted.request.texts)):
            made: Sequence[Tensor]
            if isinstance(wanted.request, gateway_pb2.ClassifyRequest):
                classified = await self._core.Classify(wanted.request, call, caller)
                made, precision = classification_tensors(classified), classified.precision
            else:
                embedded = await self._core.Embed(wanted.request, call, caller)
                made, precision = embedding_tensors(embedded), embedded.precision
            by_name = {tensor.name: tensor for tensor in made}
            yield reply.of(
                [by_name[name] for name in wanted.outputs],
                precision=_precision(precision),
                **({"triton_final_response": True} if may_stream else {}),
            )

    def _reply(self, request: pb.ModelInferRequest, asked: Asked, caller: Caller) -> Reply:
        def write(place: Place, field: str, data: bytes) -> None:
            self._regions.write(caller.tenant, place.region, place.offset, place.byte_size, field, data)

        return Reply(request.model_name, request.id, asked.request_id, is_typed(request), asked.outputs, write)


def _precision(number: int) -> str:
    precision = Precision.known(number)
    return precision.name.lower() if precision else ""
