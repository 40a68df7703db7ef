"""`headrace up --http` as a user starts it."""

import socket

import openai
import pytest

from headrace.models import reference

LONG = 4000


@pytest.fixture
def free_address():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        host, port = probe.getsockname()
    return f"{host}:{port}"


@pytest.mark.parametrize("options", [(), ("--single",)], ids=["processes", "single"])
def test_it_serves_and_finishes_what_runs_before_it_leaves(start_up, free_address, options):
    up = start_up(*options, "--http", free_address)
    up.ready()
    assert f"OpenAI clients: http://{free_address}/v1" in up.log.read_text()
    with openai.OpenAI(base_url=f"http://{free_address}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [reference.NAME]
        asked = {"model": reference.NAME, "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
        assert client.chat.completions.create(**asked, max_tokens=8).usage.completion_tokens == 8
        stream = client.chat.completions.create(
            **asked, max_tokens=LONG, stream=True, stream_options={"include_usage": True}
        )
        next(stream)
        up.interrupt()
        *_, last = stream
    assert last.usage.completion_tokens == LONG
    code, lines = up.ended()
    assert code == 0, lines
    assert not any("rror" in line for line in lines), lines


def test_an_address_that_is_taken_is_named(start_up):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        up = start_up("--single", "--http", address)
        code, lines = up.ended()
    assert code not in (0, None)
    assert any(f"cannot listen on {address}" in line for line in lines), lines
