"""NVIDIA's own client, unchanged: its sync, async, streaming and shared-memory calls against the gateway.

It has stubs of the same package, and pins an older protobuf: so it lives in an environment of its own, made once under
the cache folder.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from headrace.benchmarks.peers.environment import Environment, Recipe, prepare
from headrace.chassis.config import default_home
from headrace.core.errors import Unavailable
from headrace.executor.engines.reference import expected_answer

SESSION = Path(__file__).parent / "tritonclient_session.py"
RECIPE = Recipe("tritonclient", (("tritonclient[grpc]==2.73.0",),))
ENDS_S = 240
STUBS = """
from google.protobuf import __version__
import headrace.api.inference.inference_pb2_grpc, headrace.api.gateway.v1.gateway_pb2_grpc
print(__version__)
"""


@pytest.fixture(scope="session")
def environment() -> Environment:
    peers = default_home() / "peers"
    peers.mkdir(parents=True, exist_ok=True)
    with FileLock(peers / "tritonclient.lock", timeout=ENDS_S):
        try:
            return prepare(RECIPE, peers, print)
        except Unavailable as error:
            pytest.skip(f"tritonclient cannot be installed here: {error.message}")


def spoken(prompt: str, max_tokens: int) -> str:
    return bytes(expected_answer(prompt.encode(), max_tokens)).decode()


async def test_tritonclient_runs_unchanged(door, environment):
    prefix = f"headrace-test-{os.getpid()}-"
    async with door("tiny", kserve={"shared_memory_prefix": prefix}) as there:
        session = await asyncio.create_subprocess_exec(
            environment.python, SESSION, there.address, prefix,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment.variables(),
        )  # fmt: skip
        try:
            async with asyncio.timeout(ENDS_S):
                output, errors = await session.communicate()
        finally:
            if session.returncode is None:
                session.kill()
                await session.wait()
        assert session.returncode == 0, errors.decode()
        vectors = (await there.client.embed("tiny", ["water wheel", "river"])).vectors
    seen = json.loads(output)
    assert (seen["live"], seen["ready"]) == (True, True)
    assert seen["model_ready"] == [True, True, False]
    assert seen["server"] == "headrace"
    assert {"text_input", "input_ids"} <= set(seen["inputs"])
    assert seen["decoupled"] is True
    assert seen["index"] == ["reference", "tiny"]
    assert (seen["trace_mode"], seen["log_error"]) == (["opentelemetry"], True)
    assert seen["answer"] == seen["by_ids"] == spoken("Hi", 8)
    assert (seen["id"], seen["num_input_tokens"], seen["finish_reason"]) == ("one", 2, "length")
    assert seen["embedding"] == [list(vector) for vector in vectors]
    assert seen["refused"][0] == "StatusCode.INVALID_ARGUMENT"
    assert "max_tokens" in seen["refused"][1]
    assert seen["async"] == [None, spoken("Hi", 8)]
    assert seen["successes"] == 3
    assert seen["streamed"] == {"a": spoken("Hi", 12), "b": spoken("Ho", 12)}
    assert len(seen["stream_errors"]) == 1
    assert "temperature" in seen["stream_errors"][0]
    assert (seen["regions"], seen["regions_left"]) == (["in", "out"], ["out"])
    assert seen["shared_embedding"] == seen["embedding"]
    assert seen["outside"] == "StatusCode.INVALID_ARGUMENT"
    assert seen["aio"] == [spoken("Hi", 8)]
    assert seen["aio_streamed"] == spoken("Hi", 12)


def test_our_stubs_load_under_the_protobuf_that_the_client_pins(environment):
    done = subprocess.run(
        [environment.python, "-c", STUBS],
        capture_output=True,
        text=True,
        timeout=ENDS_S,
        env=environment.variables(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6.")
