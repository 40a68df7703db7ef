"""What models take and give in this door's words: signatures, metadata, configurations."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.api.inference import inference_pb2 as pb
from headrace.core.errors import InvalidRequest
from headrace.core.model import ModelInfo
from headrace.gateway.encoding_codec import MAX_TEXTS
from headrace.gateway.kserve.tensors import BYTES, Tensor

VERSION = "1"
"""Of every model: one name stands for one."""
PLATFORM = "headrace"

TEXT_INPUT, INPUT_IDS = "text_input", "input_ids"
STREAM, EXCLUDE_INPUT, SAMPLING_PARAMETERS = "stream", "exclude_input_in_output", "sampling_parameters"
TEXT_OUTPUT, FINISH_REASON = "text_output", "finish_reason"
NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS = "num_input_tokens", "num_output_tokens"
ON_REQUEST = (FINISH_REASON, NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS)
"""Outputs that a generation has where they are asked for: by name, or by the flag return_NAME."""
TEXT, EMBEDDING, LABEL, SCORE = "text", "embedding", "label", "score"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """`dims` without the batch's, -1 for any size. The first of `datatypes` is the one that metadata names."""

    name: str
    datatypes: tuple[str, ...]
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """`max_batch` 0: tensors have no batch dimension."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    max_batch: int
    decoupled: bool


_GENERATION = Signature(
    inputs=(
        TensorSpec(TEXT_INPUT, (BYTES,), (1,), optional=True),  # or input_ids
        TensorSpec(INPUT_IDS, ("INT64", "INT32", "UINT32"), (-1,), optional=True),
        TensorSpec(STREAM, ("BOOL",), (1,), optional=True),
        TensorSpec(SAMPLING_PARAMETERS, (BYTES,), (1,), optional=True),
        TensorSpec(EXCLUDE_INPUT, ("BOOL",), (1,), optional=True),
        *(TensorSpec(f"return_{name}", ("BOOL",), (1,), optional=True) for name in ON_REQUEST),
    ),
    outputs=(
        TensorSpec(TEXT_OUTPUT, (BYTES,), (-1,)),
        TensorSpec(FINISH_REASON, (BYTES,), (-1,)),
        TensorSpec(NUM_INPUT_TOKENS, ("UINT32",), (1,)),
        TensorSpec(NUM_OUTPUT_TOKENS, ("UINT32",), (-1,)),
    ),
    max_batch=0,
    decoupled=True,
)
_TEXTS = (TensorSpec(TEXT, (BYTES,), (1,)),)
_EMBEDDING = Signature(_TEXTS, (TensorSpec(EMBEDDING, ("FP32",), (-1,)),), MAX_TEXTS, decoupled=False)
_CLASSIFICATION = Signature(
    _TEXTS, (TensorSpec(LABEL, (BYTES,), (-1,)), TensorSpec(SCORE, ("FP32",), (-1,))), MAX_TEXTS, decoupled=False
)


def signature(model: ModelInfo) -> Signature:
    if model.kind == "decoder":
        return _GENERATION
    return _CLASSIFICATION if model.labels else _EMBEDDING


def check_inputs(model: ModelInfo, inputs: dict[str, Tensor]) -> None:
    """Raises InvalidRequest where one is unknown, of a wrong datatype, or missing."""
    specs = {spec.name: spec for spec in signature(model).inputs}
    for tensor in inputs.values():
        spec = specs.get(tensor.name)
        if spec is None:
            limit = ", ".join(specs)
            raise InvalidRequest(
                f"input {tensor.name!r:.40} is unknown, model {model.name!r} takes {limit}", field="inputs", limit=limit
            )
        if tensor.datatype not in spec.datatypes:
            limit = " or ".join(spec.datatypes)
            raise InvalidRequest(
                f"input {tensor.name} is {tensor.datatype}, must be {limit}", field=tensor.name, limit=limit
            )
    for spec in specs.values():
        if not spec.optional and spec.name not in inputs:
            raise InvalidRequest(f"input {spec.name} is missing", field=spec.name, limit=spec.datatypes[0])


def metadata(model: ModelInfo) -> pb.ModelMetadataResponse:
    taken = signature(model)
    batch = (-1,) if taken.max_batch else ()

    def spell(specs: Sequence[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
        return [
            pb.ModelMetadataResponse.TensorMetadata(
                name=spec.name, datatype=spec.datatypes[0], shape=(*batch, *spec.dims)
            )
            for spec in specs
        ]

    return pb.ModelMetadataResponse(
        name=model.name,
        versions=[VERSION],
        platform=PLATFORM,
        inputs=spell(taken.inputs),
        outputs=spell(taken.outputs),
    )


def config(model: ModelInfo) -> pb.ModelConfigResponse:
    taken = signature(model)
    facts = {
        "kind": model.kind,
        "digest": model.digest,
        "context_tokens": str(model.context_tokens),
        "vocab_size": str(model.vocab_size),
    }
    return pb.ModelConfigResponse(
        config=pb.ModelConfig(
            name=model.name,
            platform=PLATFORM,
            backend=PLATFORM,
            max_batch_size=taken.max_batch,
            input=[
                pb.ModelInput(name=spec.name, data_type=_data_type(spec), dims=spec.dims, optional=spec.optional)
                for spec in taken.inputs
            ],
            output=[
                pb.ModelOutput(name=spec.name, data_type=_data_type(spec), dims=spec.dims) for spec in taken.outputs
            ],
            parameters={name: pb.ModelParameter(string_value=value) for name, value in facts.items()},
            model_transaction_policy=pb.ModelTransactionPolicy(decoupled=taken.decoupled),
        )
    )


def _data_type(spec: TensorSpec) -> "pb.DataType.ValueType":
    datatype = spec.datatypes[0]
    return pb.DataType.Value("TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}")
