"""Generations through the door: the answers are those of the gateway's own contract, whole and streamed."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest

from headrace.api.inference import inference_pb2 as pb
from headrace.chassis.status import from_rpc_error
from headrace.executor.engines.reference import expected_answer
from headrace.models import reference

PROMPT = "Hi"


def spoken(prompt: str, max_tokens: int) -> str:
    return bytes(expected_answer(prompt.encode(), max_tokens)).decode()


def asked(text: str | None = PROMPT, outputs: tuple[str, ...] = (), id: str = "", **parameters: Any) -> Any:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    request = pb.ModelInferRequest(model_name=reference.NAME, id=id)
    for name, value in parameters.items():
        request.parameters[name].CopyFrom(pb.InferParameter(**{kinds[type(value)]: value}))
    if text is not None:
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    for name in outputs:
        request.outputs.add(name=name)
    return request


def tensors(response: pb.ModelInferResponse) -> dict[str, list[Any]]:
    return {
        each.name: list(each.contents.bytes_contents) or list(each.contents.uint_contents) for each in response.outputs
    }


async def stream(stub: Any, *requests: pb.ModelInferRequest, **call: Any) -> list[pb.ModelStreamInferResponse]:
    async def send() -> AsyncIterator[pb.ModelInferRequest]:
        for request in requests:
            yield request

    return [response async for response in stub.ModelStreamInfer(send(), **call)]


async def refusal(call: Any) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    error = from_rpc_error(refused.value)
    return refused.value.code(), error.field, error.limit


async def test_an_answer_is_the_gateways_own(door):
    async with door() as there:
        own = await there.client.generate(reference.NAME, PROMPT, max_tokens=9)
        whole = await there.stub.ModelInfer(asked(max_tokens=9, id="mine"))
        bare = await there.stub.ModelInfer(asked(max_tokens="9", exclude_input_in_output=True))
    assert own.text == spoken(PROMPT, 9)
    assert tensors(whole) == {"text_output": [(PROMPT + own.text).encode()]}
    assert tensors(bare) == {"text_output": [own.text.encode()]}
    assert (whole.model_name, whole.model_version, whole.id) == (reference.NAME, "1", "mine")
    assert whole.parameters["request_id"].string_param.startswith("mine.")


async def test_raw_contents_are_answered_raw(door):
    request = asked(max_tokens=3, exclude_input_in_output=True)
    request.inputs[0].ClearField("contents")
    request.raw_input_contents.append(b"\2\0\0\0" + PROMPT.encode())
    async with door() as there:
        response = await there.stub.ModelInfer(request)
    assert list(response.raw_output_contents) == [b"\3\0\0\0" + spoken(PROMPT, 3).encode()]
    assert not response.outputs[0].HasField("contents")


@pytest.mark.parametrize("datatype", ["INT32", "INT64", "UINT32"])
@pytest.mark.parametrize("shape", [[2], [1, 2]])
async def test_a_prompt_may_be_token_ids(door, datatype, shape):
    field = {"INT32": "int_contents", "INT64": "int64_contents", "UINT32": "uint_contents"}[datatype]
    request = asked(None, max_tokens=5)
    ids = request.inputs.add(name="input_ids", datatype=datatype, shape=shape)
    getattr(ids.contents, field).extend(PROMPT.encode())
    async with door() as there:
        response = await there.stub.ModelInfer(request)
    assert tensors(response) == {"text_output": [spoken(PROMPT, 5).encode()]}


async def test_further_outputs_come_by_name_or_by_flag(door):
    wanted = ("text_output", "num_output_tokens", "finish_reason", "num_input_tokens")
    by_flag = asked(max_tokens=4, exclude_input_in_output=True)
    for name in wanted[1:]:
        by_flag.inputs.add(name=f"return_{name}", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    async with door() as there:
        named = await there.stub.ModelInfer(asked(outputs=wanted, max_tokens=4, exclude_input_in_output=True))
        flagged = await there.stub.ModelInfer(by_flag)
    assert [each.name for each in named.outputs] == list(wanted)
    assert tensors(named) == tensors(flagged)
    assert tensors(named) == {
        "text_output": [spoken(PROMPT, 4).encode()],
        "finish_reason": [b"length"],
        "num_input_tokens": [2],
        "num_output_tokens": [4],
    }


async def test_sampling_parameters_do_what_the_gateways_own_do(door):
    settings = {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "seed": 7, "max_tokens": 12}
    async with door() as there:
        own = await there.client.generate(reference.NAME, PROMPT, n=2, **settings)
        given = asked(n=2, exclude_input_in_output=True, **{name: str(value) for name, value in settings.items()})
        parameters = await there.stub.ModelInfer(given)
        joined = asked(exclude_input_in_output=True)
        text = json.dumps(settings | {"n": 2})
        joined.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
            text.encode()
        )
        tensor = await there.stub.ModelInfer(joined)
        stop = spoken(PROMPT, 9)[5:7]
        stopped = await there.stub.ModelInfer(asked(max_tokens=9, stop=stop, exclude_input_in_output=True))
    texts = [answer.text.encode() for answer in own]
    assert tensors(parameters) == tensors(tensor)
    assert tensors(parameters)["text_output"] == texts
    assert tensors(stopped)["text_output"] == [spoken(PROMPT, 9).split(stop)[0].encode()]


async def test_answers_may_be_bound(door):
    async with door() as there:
        bound = {
            "choice": '["yes", "no"]',
            "regex": "[0-9]{3}",
            "json_schema": '{"enum": ["yes", "no"]}',
            "grammar": 'start: "yes" | "no"',
        }
        for name, value in bound.items():
            own = await there.client.generate(
                reference.NAME, PROMPT, **{name: json.loads(value) if name == "choice" else value}
            )
            response = await there.stub.ModelInfer(asked(exclude_input_in_output=True, **{name: value}))
            assert tensors(response) == {"text_output": [own.text.encode()]}
            assert own.text.strip('"') in ("yes", "no") or len(own.text) == 3
        for parameters, field in (
            ({"regex": "("}, "regex"),
            ({"choice": "[]"}, "choice"),
            ({"regex": "a", "json_object": True}, "json_object"),
        ):
            code, named, _ = await refusal(there.stub.ModelInfer(asked(**parameters)))
            assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, f"parameters.{field}")


async def test_a_stream_brings_the_answer_in_pieces_and_says_which_is_the_last(door):
    request = asked(stream=True, max_tokens=20, id="s", outputs=("text_output", "num_output_tokens", "finish_reason"))
    async with door(executor={"reference_step_ms": 2}) as there:
        responses = await stream(there.stub, request)
    pieces = [response.infer_response for response in responses]
    assert not any(response.error_message for response in responses)
    assert b"".join(tensors(piece)["text_output"][0] for piece in pieces).decode() == spoken(PROMPT, 20)
    assert sum(tensors(piece)["num_output_tokens"][0] for piece in pieces) == 20
    assert len(pieces) > 1
    assert [piece.parameters["triton_final_response"].bool_param for piece in pieces] == [False] * (len(pieces) - 1) + [
        True
    ]
    assert [tensors(piece)["finish_reason"][0] for piece in pieces] == [b"None"] * (len(pieces) - 1) + [b"length"]
    assert {piece.id for piece in pieces} == {"s"}


async def test_requests_of_one_stream_are_answered_side_by_side(door):
    prompts = {f"r{number}": f"prompt {number}" for number in range(12)}
    async with door(executor={"reference_step_ms": 1}) as there:
        responses = await stream(
            there.stub,
            *(
                asked(text, id=id, stream=number % 2 == 0, max_tokens=10, exclude_input_in_output=True)
                for number, (id, text) in enumerate(prompts.items())
            ),
            asked("x", id="bad", temperature="hot"),
        )
    answers: dict[str, bytes] = {}
    for response in responses:
        if response.infer_response.id != "bad":
            assert not response.error_message
            text = tensors(response.infer_response)["text_output"][0]
            answers[response.infer_response.id] = answers.get(response.infer_response.id, b"") + text
    assert {id: text.decode() for id, text in answers.items()} == {id: spoken(text, 10) for id, text in prompts.items()}
    [bad] = [response for response in responses if response.infer_response.id == "bad"]
    assert "parameters.temperature" in bad.error_message
    assert bad.infer_response.parameters["reason"].string_param == "INVALID_REQUEST"
    assert bad.infer_response.parameters["field"].string_param == "parameters.temperature"
    assert bad.infer_response.parameters["triton_final_response"].bool_param


async def test_whoever_wants_a_status_of_a_stream_gets_one(door):
    async with door() as there:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream(there.stub, asked(temperature="hot"), metadata=(("triton_grpc_error", "true"),))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(refused.value).field == "parameters.temperature"


async def test_a_stream_that_is_cancelled_leaves_nothing(door):
    async with door(executor={"reference_step_ms": 5}) as there:
        first = asyncio.Event()
        ended = asyncio.Event()

        async def send() -> AsyncIterator[pb.ModelInferRequest]:
            yield asked(stream=True, max_tokens=2000)
            await ended.wait()

        call = there.stub.ModelStreamInfer(send())

        async def read() -> None:
            async for _ in call:
                first.set()

        reader = asyncio.create_task(read())
        async with asyncio.timeout(60):
            await first.wait()
        call.cancel()
        await asyncio.wait([reader])
        ended.set()
        handle = there.suite.handles["gateway"]
        async with asyncio.timeout(60):
            while handle.in_use().requests or handle.in_use().running:  # noqa: ASYNC110 (nothing there could set an event)
                await asyncio.sleep(0.01)
        assert handle.in_use().tokens == 0


async def test_priority_and_timeout_are_the_gateways_class_and_deadline(door):
    async with door(executor={"reference_step_ms": 20}) as there:
        for priority in (0, 1, 2, 3):
            await there.stub.ModelInfer(asked(priority=priority, max_tokens=1))
        late = there.stub.ModelInfer(asked(timeout=50_000, max_tokens=2000))
        code, _, _ = await refusal(late)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        code, field, limit = await refusal(there.stub.ModelInfer(asked(priority=4)))
        assert (code, field, limit) == (grpc.StatusCode.INVALID_ARGUMENT, "parameters.priority", "0..3")
        own = await stream(there.stub, asked(id="late", timeout=50_000, max_tokens=2000), asked(id="ok", max_tokens=2))
    errors = {each.infer_response.id: each.infer_response.parameters["reason"].string_param for each in own}
    assert errors == {"late": "DEADLINE_MISSED", "ok": ""}


BAD = {
    "no prompt": (asked(None), "text_input"),
    "an empty prompt": (asked(""), "text_input"),
    "a stream of a call that answers once": (asked(stream=True), "stream"),
    "an unknown parameter": (asked(best_of=2), "parameters.best_of"),
    "a sequence": (asked(sequence_id=7), "parameters.sequence_id"),
    "a class that is none": (asked(qos_class="express"), "parameters.qos_class"),
    "class and priority": (asked(qos_class="batch", priority=1), "parameters.priority"),
    "too hot": (asked(temperature=1e9), "parameters.temperature"),
    "no number at all": (asked(temperature=float("nan")), "parameters.temperature"),
    "more answers than there may be": (asked(n=17), "parameters.n"),
    "more tokens than the context": (asked(max_tokens=2**32 - 1), "parameters.max_tokens"),
    "more tokens than the wire": (asked(max_tokens=2**40), "parameters.max_tokens"),
    "an unknown output": (asked(outputs=("logits",)), "outputs[0].name"),
    "an output twice": (asked(outputs=("text_output", "text_output")), "outputs[1].name"),
    "an id that is too long": (asked(id="x" * 120), "id"),
    "an id that cannot be printed": (asked(id="\n"), "id"),
    "a first token's promise that is no number": (asked(sla_first_token_ms="soon"), "parameters.sla_first_token_ms"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_cannot_be_is_refused_by_name_and_limit(door, case):
    bad, field = BAD[case]
    async with door() as there:
        code, named, limit = await refusal(there.stub.ModelInfer(bad))
        assert (code, named) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert limit
        await there.stub.ModelInfer(asked(max_tokens=1))


async def test_token_ids_are_checked_by_name(door):
    def ids(*values: int, datatype: str = "INT64", shape: list[int] | None = None) -> pb.ModelInferRequest:
        request = asked(None, max_tokens=1)
        given = request.inputs.add(name="input_ids", datatype=datatype, shape=shape or [len(values)])
        request.raw_input_contents.append(np.array(values, "<i8").tobytes())
        assert given.name
        return request

    async with door() as there:
        for bad in (ids(-1), ids(2**32), ids(reference.VOCAB_SIZE), ids(1, 2, shape=[2, 1]), ids(shape=[0])):
            code, field, limit = await refusal(there.stub.ModelInfer(bad))
            assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "input_ids")
            assert limit


async def test_statistics_count_what_went_well_and_what_did_not(door):
    async with door() as there:
        for _ in range(3):
            await there.stub.ModelInfer(asked(max_tokens=1))
        await refusal(there.stub.ModelInfer(asked(temperature=1e9)))
        response = await there.stub.ModelStatistics(pb.ModelStatisticsRequest(name=reference.NAME))
    [statistics] = response.model_stats
    assert (statistics.inference_stats.success.count, statistics.inference_stats.fail.count) == (3, 1)
    assert statistics.inference_count == 3
    assert statistics.inference_stats.success.ns > 0
    assert statistics.last_inference > 0


async def test_a_promise_that_is_missed_ends_with_a_handle(door):
    request = asked(stream=True, max_tokens=400, sla_total_ms=200, sla_on_miss="partial", outputs=("finish_reason",))
    async with door(executor={"reference_step_ms": 20}) as there:
        responses = await stream(there.stub, request)
        last = responses[-1].infer_response
        assert tensors(last)["finish_reason"] == [b"partial"]
        assert last.parameters["triton_final_response"].bool_param
        handle = last.parameters["result_handle"].string_param
        results = await there.client.list_results()
        assert handle in {each.handle for each in results}
        await there.client.cancel_result(handle)
