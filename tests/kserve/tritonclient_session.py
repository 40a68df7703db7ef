"""A session of NVIDIA's tritonclient[grpc], unchanged, against the gateway. Runs in an environment of its own.

    python tritonclient_session.py ADDRESS SHARED_MEMORY_PREFIX

Prints what it saw as JSON; whatever goes wrong ends it with a traceback.
"""

import asyncio
import json
import queue
import sys
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as shared_memory
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, serialized_byte_size

DECODER, ENCODER = "reference", "tiny"
WAIT_S = 120


def text(prompt: str) -> Any:
    given = triton.InferInput("text_input", [1], "BYTES")
    given.set_data_from_numpy(np.array([prompt.encode()], dtype=np.object_))
    return given


def texts(values: list[str]) -> Any:
    given = triton.InferInput("text", [len(values), 1], "BYTES")
    given.set_data_from_numpy(np.array([[value.encode()] for value in values], dtype=np.object_))
    return given


def server(client: Any, seen: dict[str, Any]) -> None:
    seen["live"], seen["ready"] = client.is_server_live(), client.is_server_ready()
    seen["model_ready"] = [client.is_model_ready(name) for name in (DECODER, ENCODER, "nobody")]
    seen["server"] = client.get_server_metadata().name
    seen["inputs"] = [each.name for each in client.get_model_metadata(DECODER).inputs]
    seen["decoupled"] = client.get_model_config(DECODER).config.model_transaction_policy.decoupled
    seen["index"] = sorted(each.name for each in client.get_model_repository_index().models if each.state == "READY")
    seen["trace_mode"] = list(client.get_trace_settings().settings["trace_mode"].value)
    seen["log_error"] = client.get_log_settings().settings["log_error"].bool_param


def inference(client: Any, seen: dict[str, Any]) -> None:
    parameters = {"max_tokens": 8, "exclude_input_in_output": True}
    result = client.infer(
        DECODER, [text("Hi")], request_id="one", priority=1, timeout=60_000_000, parameters=parameters
    )
    seen["answer"] = result.as_numpy("text_output")[0].decode()
    seen["id"] = result.get_response().id
    ids = triton.InferInput("input_ids", [2], "INT32")
    ids.set_data_from_numpy(np.frombuffer(b"Hi", np.uint8).astype(np.int32))
    outputs = [triton.InferRequestedOutput(name) for name in ("text_output", "num_input_tokens", "finish_reason")]
    counted = client.infer(DECODER, [ids], outputs=outputs, parameters={"max_tokens": 8})
    seen["by_ids"] = counted.as_numpy("text_output")[0].decode()
    seen["num_input_tokens"] = int(counted.as_numpy("num_input_tokens")[0])
    seen["finish_reason"] = counted.as_numpy("finish_reason")[0].decode()
    vectors = client.infer(ENCODER, [texts(["water wheel", "river"])]).as_numpy("embedding")
    seen["embedding"] = vectors.tolist()
    try:
        client.infer(DECODER, [text("Hi")], parameters={"max_tokens": 0})
    except InferenceServerException as error:
        seen["refused"] = [error.status(), error.message()]

    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer(DECODER, [text("Hi")], lambda result, error: answers.put((result, error)), parameters=parameters)
    result, error = answers.get(timeout=WAIT_S)
    seen["async"] = [error and str(error), result.as_numpy("text_output")[0].decode()]
    statistics = client.get_inference_statistics(DECODER).model_stats[0]
    seen["successes"] = statistics.inference_stats.success.count


def streaming(client: Any, seen: dict[str, Any]) -> None:
    """Two requests and a bad one on one stream."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=partial(lambda answers, result, error: answers.put((result, error)), answers))
    for id, prompt in (("a", "Hi"), ("b", "Ho")):
        client.async_stream_infer(
            DECODER,
            [text(prompt)],
            request_id=id,
            enable_empty_final_response=True,
            parameters={"stream": True, "max_tokens": 12},
        )
    client.async_stream_infer(DECODER, [text("x")], request_id="c", parameters={"temperature": "hot"})
    told, open_ids, errors = {"a": "", "b": ""}, {"a", "b"}, []
    while open_ids or not errors:
        result, error = answers.get(timeout=WAIT_S)
        if error is not None:
            errors.append(str(error))
            continue
        response = result.get_response()
        told[response.id] += result.as_numpy("text_output")[0].decode()
        if response.parameters["triton_final_response"].bool_param:
            open_ids.discard(response.id)
    client.stop_stream()
    seen["streamed"], seen["stream_errors"] = told, errors


async def asynchronous(address: str, seen: dict[str, Any]) -> None:
    async with triton_aio.InferenceServerClient(address) as client:
        parameters = {"max_tokens": 8, "exclude_input_in_output": True}
        results = await asyncio.gather(*(client.infer(DECODER, [text("Hi")], parameters=parameters) for _ in range(8)))
        seen["aio"] = sorted({each.as_numpy("text_output")[0].decode() for each in results})

        async def requests() -> Any:
            yield {"model_name": DECODER, "inputs": [text("Hi")], "parameters": {"stream": True, "max_tokens": 12}}

        told = ""
        async for result, error in client.stream_infer(requests()):
            if error is not None:
                raise error
            told += result.as_numpy("text_output")[0].decode()
        seen["aio_streamed"] = told


def through_shared_memory(client: Any, prefix: str, seen: dict[str, Any]) -> None:
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    values = np.array([b"water wheel", b"river"], dtype=np.object_)
    data = serialize_byte_tensor(values)
    num_bytes, vector_bytes = serialized_byte_size(data), 2 * 32 * 4
    given = shared_memory.create_shared_memory_region("in", f"/{prefix}in", num_bytes)
    taken = shared_memory.create_shared_memory_region("out", f"/{prefix}out", vector_bytes)
    try:
        shared_memory.set_shared_memory_region(given, [data])
        client.register_system_shared_memory("in", f"/{prefix}in", num_bytes)
        client.register_system_shared_memory("out", f"/{prefix}out", vector_bytes)
        seen["regions"] = sorted(client.get_system_shared_memory_status().regions)
        inputs = [triton.InferInput("text", [2], "BYTES")]
        inputs[0].set_shared_memory("in", num_bytes)
        outputs = [triton.InferRequestedOutput("embedding")]
        outputs[0].set_shared_memory("out", vector_bytes)
        result = client.infer(ENCODER, inputs, outputs=outputs)
        shape = list(result.get_output("embedding").shape)
        seen["shared_embedding"] = shared_memory.get_contents_as_numpy(taken, np.float32, shape).tolist()
        client.unregister_system_shared_memory("in")
        seen["regions_left"] = sorted(client.get_system_shared_memory_status().regions)
        client.unregister_system_shared_memory()
        try:
            client.register_system_shared_memory("other", "/elsewhere", 8)
        except InferenceServerException as error:
            seen["outside"] = error.status()
    finally:
        shared_memory.destroy_shared_memory_region(given)
        shared_memory.destroy_shared_memory_region(taken)


def main() -> None:
    address, prefix = sys.argv[1:]
    seen: dict[str, Any] = {}
    client = triton.InferenceServerClient(address)
    server(client, seen)
    inference(client, seen)
    streaming(client, seen)
    through_shared_memory(client, prefix, seen)
    client.close()
    asyncio.run(asynchronous(address, seen))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
