"""Texts through the door: vectors and labels are bit for bit those of the gateway's own contract."""

from typing import Any

import grpc
import numpy as np
import pytest

from headrace.api.inference import inference_pb2 as pb
from headrace.chassis.status import from_rpc_error

TEXTS = ["a", "water wheel", "the river runs"]


def asked(
    texts: list[str] | list[bytes], model: str = "tiny", shape: list[int] | None = None, **parameters: Any
) -> Any:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param"}
    request = pb.ModelInferRequest(model_name=model)
    for name, value in parameters.items():
        request.parameters[name].CopyFrom(pb.InferParameter(**{kinds[type(value)]: value}))
    given = request.inputs.add(name="text", datatype="BYTES", shape=shape or [len(texts)])
    given.contents.bytes_contents.extend(each if isinstance(each, bytes) else each.encode() for each in texts)
    return request


async def test_vectors_are_the_gateways_own(door):
    async with door("tiny") as there:
        own = await there.client.embed("tiny", TEXTS)
        flat = await there.stub.ModelInfer(asked(TEXTS))
        column = await there.stub.ModelInfer(asked(TEXTS, shape=[3, 1]))
        raw_request = asked(TEXTS)
        raw_request.inputs[0].ClearField("contents")
        raw_request.raw_input_contents.append(
            b"".join(len(each).to_bytes(4, "little") + each.encode() for each in TEXTS)
        )
        raw = await there.stub.ModelInfer(raw_request)
        own_short = await there.client.embed("tiny", TEXTS, pooling="cls", normalize=False, dimensions=8)
        short = await there.stub.ModelInfer(asked(TEXTS, pooling="cls", normalize=False, dimensions=8))
        statistics = await there.stub.ModelStatistics(pb.ModelStatisticsRequest(name="tiny"))
    for response in (flat, column):
        assert list(response.outputs[0].shape) == [3, 32]
        assert np.array(response.outputs[0].contents.fp32_contents, "<f4").reshape(3, 32).tolist() == [
            list(each) for each in own.vectors
        ]
    assert np.frombuffer(raw.raw_output_contents[0], "<f4").tolist() == [x for each in own.vectors for x in each]
    assert list(short.outputs[0].shape) == [3, 8]
    assert list(short.outputs[0].contents.fp32_contents) == [x for each in own_short.vectors for x in each]
    assert raw.parameters["precision"].string_param == own.precision.name.lower()
    assert statistics.model_stats[0].inference_count == 12


async def test_a_model_with_labels_classifies(door):
    async with door("moods") as there:
        own = await there.client.classify("moods", TEXTS)
        response = await there.stub.ModelInfer(asked(TEXTS, "moods"))
        best = await there.stub.ModelInfer(asked(TEXTS, "moods", top_n=1))
    label, score = response.outputs
    assert (label.name, score.name) == ("label", "score")
    assert list(label.shape) == list(score.shape) == [3, 3]
    assert [each.decode() for each in label.contents.bytes_contents] == [
        one.label for text in own.results for one in text
    ]
    assert list(score.contents.fp32_contents) == [one.score for text in own.results for one in text]
    assert list(best.outputs[0].shape) == [3, 1]


async def test_texts_go_over_a_stream_too(door):
    async def send():
        yield asked(TEXTS)
        yield asked(["x" * 200])

    async with door("tiny") as there:
        responses = [each async for each in there.stub.ModelStreamInfer(send())]
    [good] = [each for each in responses if not each.error_message]
    [bad] = [each for each in responses if each.error_message]
    assert list(good.infer_response.outputs[0].shape) == [3, 32]
    assert good.infer_response.parameters["triton_final_response"].bool_param
    assert bad.infer_response.parameters["field"].string_param == "text[0]"


BAD = {
    "no text": (asked([], shape=[0]), "text"),
    "a shape of several columns": (asked(["a", "b"], shape=[1, 2]), "text"),
    "an empty text": (asked(["a", ""]), "text[1]"),
    "no UTF-8": (asked([b"a", b"\xff"]), "text[1]"),
    "a text that is too long": (asked(["a", "b" * 200]), "text[1]"),
    "more dimensions than there are": (asked(["a"], dimensions=33), "parameters.dimensions"),
    "an unknown pooling": (asked(["a"], pooling="max"), "parameters.pooling"),
    "a parameter of generations": (asked(["a"], max_tokens=3), "parameters.max_tokens"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_cannot_be_is_refused_by_name_and_limit(door, case):
    bad, field = BAD[case]
    async with door("tiny") as there:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await there.stub.ModelInfer(bad)
    error = from_rpc_error(refused.value)
    assert (refused.value.code(), error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert error.limit


async def test_wrong_and_missing_tensors_are_named(door):
    number = pb.ModelInferRequest(model_name="tiny")
    number.inputs.add(name="text", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    unknown = asked(["a"])
    unknown.inputs.add(name="mask", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    async with door("tiny") as there:
        for bad, field, limit in (
            (number, "text", "BYTES"),
            (pb.ModelInferRequest(model_name="tiny"), "text", "BYTES"),
            (unknown, "inputs", "text"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await there.stub.ModelInfer(bad)
            error = from_rpc_error(refused.value)
            assert (error.field, error.limit) == (field, limit)
