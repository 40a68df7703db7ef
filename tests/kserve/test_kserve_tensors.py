"""Tensors in their three forms, and what is refused by name before anything is done with it."""

import struct
from typing import Any

import numpy as np
import pytest

from headrace.api.inference import inference_pb2 as pb
from headrace.core.errors import InvalidRequest
from headrace.gateway.kserve.tensors import Place, Tensor, add_output, is_typed, read_inputs, to_bytes

Input = pb.ModelInferRequest.InferInputTensor


def no_place(place: Place, field: str) -> bytes:
    raise AssertionError("nothing is in shared memory here")


def raw(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def request(*inputs: Any, contents: Any = ()) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(inputs=inputs, raw_input_contents=contents)


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BYTES", "bytes_contents", [b"", b"water", "Mühle".encode()]),
        ("BOOL", "bool_contents", [True, False, True]),
        ("INT32", "int_contents", [-1, 0, 2**31 - 1]),
        ("INT64", "int64_contents", [-1, 0, 2**63 - 1]),
        ("UINT32", "uint_contents", [0, 1, 2**32 - 1]),
        ("FP32", "fp32_contents", [0.5, -1.0, 3.25]),
    ],
)
def test_raw_and_typed_contents_are_the_same_values(datatype, field, values):
    given = Input(name="x", datatype=datatype, shape=[3, 1], contents={field: values})
    typed = read_inputs(request(given), no_place)["x"]
    given.ClearField("contents")
    again = read_inputs(request(given, contents=[to_bytes(typed)]), no_place)["x"]
    assert list(typed.values) == list(again.values) == values
    assert typed.shape == again.shape == (3, 1)


def test_an_output_goes_as_the_inputs_came():
    tensor = Tensor("y", "FP32", (1, 2), np.array([1, 2], "<f4"))
    for typed in (True, False):
        response = pb.ModelInferResponse()
        add_output(response, tensor, typed, None, lambda place, name, data: None)
        assert list(response.outputs[0].contents.fp32_contents) == ([1, 2] if typed else [])
        assert list(response.raw_output_contents) == ([] if typed else [np.array([1, 2], "<f4").tobytes()])
    assert is_typed(request(Input(contents=pb.InferTensorContents(bytes_contents=[b"a"]))))
    assert not is_typed(request(Input(name="x"), contents=[b""]))


def test_an_output_in_shared_memory_leaves_its_place_in_the_response_empty():
    written: list[tuple[Place, str, bytes]] = []
    response, place = pb.ModelInferResponse(), Place("region", 8, 64)
    add_output(response, Tensor("y", "BYTES", (1,), [b"ab"]), False, place, lambda *each: written.append(each))
    assert written == [(place, "y", raw(b"ab"))]
    assert list(response.raw_output_contents) == [b""]
    given = response.outputs[0].parameters
    assert given["shared_memory_region"].string_param == "region"
    assert (given["shared_memory_offset"].int64_param, given["shared_memory_byte_size"].int64_param) == (8, 6)


def test_inputs_in_shared_memory_take_no_raw_contents():
    shared = Input(name="x", datatype="BYTES", shape=[1])
    shared.parameters["shared_memory_region"].string_param = "region"
    shared.parameters["shared_memory_byte_size"].int64_param = 6
    plain = Input(name="y", datatype="BYTES", shape=[1])
    read = read_inputs(request(shared, plain, contents=[raw(b"cd")]), lambda place, field: raw(b"ab"))
    assert (read["x"].values, read["y"].values) == ([b"ab"], [b"cd"])


BYTES, IDS = {"name": "x", "datatype": "BYTES"}, {"name": "x", "datatype": "INT32"}
BAD = {
    "an unknown datatype": (request(Input(name="x", datatype="COMPLEX", shape=[1])), "inputs[0].datatype"),
    "a datatype that no model takes": (request(Input(name="x", datatype="FP64", shape=[1])), "inputs[0].datatype"),
    "a size below zero": (request(Input(**IDS, shape=[-1])), "inputs[0].shape"),
    "too many dimensions": (request(Input(**IDS, shape=[1] * 5)), "inputs[0].shape"),
    "a name twice": (request(Input(**BYTES, shape=[0]), Input(**BYTES, shape=[0])), "inputs[1]"),
    "fewer elements than the shape": (request(Input(**IDS, shape=[2], contents={"int_contents": [1]})), "inputs[0]"),
    "a huge shape": (request(Input(**IDS, shape=[2**62, 2**62]), contents=[b"1234"]), "inputs[0]"),
    "a huge shape of texts": (request(Input(**BYTES, shape=[2**62]), contents=[b"1234"]), "inputs[0]"),
    "too many texts": (request(Input(**BYTES, shape=[1025]), contents=[raw(*[b""] * 1025)]), "inputs[0]"),
    "contents of another datatype": (
        request(Input(**IDS, shape=[1], contents={"int64_contents": [1]})),
        "inputs[0].contents",
    ),
    "bytes that are no whole number": (request(Input(**IDS, shape=[1]), contents=[b"123"]), "inputs[0]"),
    "a length beyond the end": (request(Input(**BYTES, shape=[1]), contents=[b"\xff\0\0\0ab"]), "inputs[0]"),
    "half a length": (request(Input(**BYTES, shape=[1]), contents=[b"\1\0"]), "inputs[0]"),
    "bytes after the last": (request(Input(**BYTES, shape=[1]), contents=[raw(b"a") + b"b"]), "inputs[0]"),
    "raw contents for one of two": (
        request(Input(**BYTES, shape=[0]), Input(name="y", datatype="BYTES", shape=[0]), contents=[b""]),
        "raw_input_contents",
    ),
    "raw contents without an input": (request(contents=[b"a"]), "raw_input_contents"),
    "both forms at once": (
        request(Input(**IDS, shape=[1], contents={"int_contents": [1]}), contents=[b"1234"]),
        "inputs[0].contents",
    ),
    "half a place": (
        request(Input(**BYTES, shape=[1], parameters={"shared_memory_region": pb.InferParameter(string_param="r")})),
        "inputs[0].parameters",
    ),
    "an unknown parameter": (
        request(Input(**BYTES, shape=[1], parameters={"layout": pb.InferParameter(string_param="r")})),
        "inputs[0].parameters.layout",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_by_name(case):
    bad, field = BAD[case]
    with pytest.raises(InvalidRequest) as refused:
        read_inputs(bad, no_place)
    assert refused.value.field == field
    assert refused.value.limit
