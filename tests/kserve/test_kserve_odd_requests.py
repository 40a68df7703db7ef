"""Requests of drawn odds and ends: each ends well or as its caller's fault, and none as a fault of the gateway's."""

import logging
import random
from typing import Any

import grpc

from headrace.api.inference import inference_pb2 as pb
from headrace.models import reference

SEED, CASES = 1, 600
FAULTS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
NAMES = ("text", "text_input", "input_ids", "stream", "sampling_parameters", "return_finish_reason", "x", "")
DATATYPES = ("BYTES", "BOOL", "INT32", "INT64", "UINT32", "FP32", "FP16", "")
PARAMETERS = (
    *("max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "stop_token_ids", "priority", "timeout"),
    *("stream", "exclude_input_in_output", "pooling", "dimensions", "truncate", "sla_total_ms", "qos_class", "x"),
    *("shared_memory_region", "shared_memory_byte_size"),
)
STRINGS = ("", "a", "1", "-1", "1e999", "NaN", "[1]", '["\\ud800"]', "{}", '{"n": 1e99}', "true", "ü", "\0", "x" * 300)
WHOLE = (-(2**63), -1, 0, 1, 2, 7, 2**31, 2**32, 2**63 - 1)


def parameter(draw: random.Random) -> pb.InferParameter:
    match draw.randrange(6):
        case 0:
            return pb.InferParameter(bool_param=draw.random() < 0.5)
        case 1:
            return pb.InferParameter(int64_param=draw.choice(WHOLE))
        case 2:
            return pb.InferParameter(double_param=draw.choice([0.0, 0.5, -1.0, 1e308, float("nan"), float("inf")]))
        case 3:
            return pb.InferParameter(uint64_param=draw.choice([0, 1, 2**64 - 1]))
        case 4:
            return pb.InferParameter()
        case _:
            return pb.InferParameter(string_param=draw.choice(STRINGS))


def fill(draw: random.Random, parameters: Any, most: int) -> None:
    for _ in range(draw.randrange(most + 1)):
        parameters[draw.choice(PARAMETERS)].CopyFrom(parameter(draw))


def odd(draw: random.Random) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(
        model_name=draw.choice([reference.NAME, reference.NAME, "tiny", "tiny", "nobody", ""]),
        model_version=draw.choice(["", "", "", "1", "x"]),
        id=draw.choice(["", "a", "\n", "x" * 300]),
    )
    fill(draw, request.parameters, 2)
    for _ in range(draw.randrange(4)):
        tensor = request.inputs.add(
            name=draw.choice(NAMES),
            datatype=draw.choice(DATATYPES),
            shape=[draw.choice([0, 1, 1, 1, 2, -1, 2**62]) for _ in range(draw.randrange(3))],
        )
        if draw.random() < 0.1:
            fill(draw, tensor.parameters, 2)
        if draw.random() < 0.6:
            tensor.contents.bytes_contents.extend(draw.choice(STRINGS).encode() for _ in range(draw.randrange(3)))
        if draw.random() < 0.3:
            tensor.contents.int64_contents.extend(draw.choice(WHOLE) for _ in range(draw.randrange(3)))
    for _ in range(draw.choice([0, 0, 1, 3])):
        request.raw_input_contents.append(draw.randbytes(draw.randrange(12)))
    for _ in range(draw.choice([0, 0, 1, 2])):
        fill(
            draw,
            request.outputs.add(name=draw.choice(["text_output", "embedding", "finish_reason", "x"])).parameters,
            1,
        )
    return request


async def test_odd_requests_are_their_callers_fault(door, caplog):
    draw = random.Random(SEED)
    good = pb.ModelInferRequest(model_name=reference.NAME)
    good.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"Hi")
    good.parameters["max_tokens"].int64_param = 3
    with caplog.at_level(logging.ERROR):
        async with door("tiny") as there:
            requests = [odd(draw) for _ in range(CASES)]
            for request in requests:
                call = there.stub.ModelInfer(request, timeout=120)
                code = await call.code()
                assert code in FAULTS, (request, await call.details())

            async def send():
                for request in requests:
                    yield request

            num_refused = 0
            async for response in there.stub.ModelStreamInfer(send()):
                num_refused += bool(response.error_message)
                assert response.infer_response.parameters["reason"].string_param not in ("INTERNAL", "ENGINE_FAULT")
            assert num_refused > CASES / 2
            await there.stub.ModelInfer(good)
            assert there.suite.handles["gateway"].in_use().requests == 0
    assert not [each for each in caplog.records if "incident" in each.message]
