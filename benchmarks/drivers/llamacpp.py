"""llama.cpp's server with its HTTP completion API: from the xllamacpp wheel, or the native binary in LLAMA_SERVER."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module

from headrace.benchmarks.closed_loop import Stream
from headrace.benchmarks.drivers.events import free_port, post_events, until_healthy
from headrace.benchmarks.drivers.serve import Options, main

READY_S = 120.0


def wheel_server(options: Options) -> tuple[object, int]:
    """The server inside this process (its threads are native), and its port."""
    llama = import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = options["gguf"]
    params.n_parallel = options["num_streams"]
    params.n_ctx = options["context_tokens"] * options["num_streams"]
    params.n_batch, params.n_ubatch = 2048, options["step_tokens"]
    params.cont_batching, params.cache_prompt, params.warmup = True, False, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.n_threads_http = options["num_streams"] + 2
    params.cache_ram_mib = 0
    server = llama.Server(params)
    return server, int(server.listening_address.rpartition(":")[2])


@asynccontextmanager
async def native_server(options: Options) -> AsyncIterator[int]:
    """LLAMA_SERVER started with the same settings; yields its port."""
    port = free_port()
    arguments = {
        "-m": options["gguf"],
        "--port": port,
        "-np": options["num_streams"],
        "-c": options["context_tokens"] * options["num_streams"],
        "-b": 2048,
        "-ub": options["step_tokens"],
        "-t": options["threads"],
        "-tb": options["threads"],
        "--threads-http": options["num_streams"] + 2,
    }
    flags = [str(word) for pair in arguments.items() for word in pair]
    process = await asyncio.create_subprocess_exec(options["server"], *flags, "--no-webui")
    try:
        await until_healthy(port, process, READY_S)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def http_stream(port: int) -> Stream:
    """Streams /completion as server-sent events over one connection a request."""

    async def stream(prompt: Sequence[int], max_tokens: int, qos: str = "normal") -> AsyncIterator[int]:
        """There are no classes here: `qos` counts for nothing."""
        body = {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        received = 0
        async for event in post_events(port, "/completion", body):
            # tokens that wait for a whole character are counted by the last event
            num_tokens = event["tokens_predicted"] - received if event.get("stop") else len(event["tokens"])
            received += num_tokens
            yield num_tokens

    return stream


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Stream]:
    """Options: gguf, server ('' for the wheel), threads, num_streams, step_tokens, context_tokens a stream."""
    if options["server"]:
        async with native_server(options) as port:
            yield http_stream(port)
    else:
        server, port = wheel_server(options)
        yield http_stream(port)
        del server


if __name__ == "__main__":
    main(open_peer, ("xllamacpp",))
