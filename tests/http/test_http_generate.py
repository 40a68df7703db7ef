"""Chats and completions over HTTP: what OpenAI's own client asks, and the gateway's own answers under it."""

import asyncio

import openai
import pytest

from headrace.client import Client, Message
from headrace.models import reference

MODEL = reference.NAME
HELLO = [{"role": "user", "content": "Hello"}]


def grpc_text(client: Client, prompt, **options) -> str:
    return client.generate(MODEL, prompt, **options).text


def test_a_chat_is_answered_as_over_grpc(client, grpc_client):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=24)
    theirs = grpc_client.generate(MODEL, [Message("user", "Hello")], max_tokens=24)
    (choice,) = answer.choices
    assert choice.message.content == theirs.text
    assert (choice.message.role, choice.finish_reason, answer.object) == ("assistant", "length", "chat.completion")
    assert answer.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (24, 24 + theirs.usage.prompt_tokens)
    assert answer.id == f"chatcmpl-{answer._request_id}"
    assert answer.system_fingerprint.endswith("-fp32")


def test_a_message_may_be_of_parts_and_an_answer_may_be_sent_back(client, grpc_client):
    first = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=4)
    said = first.choices[0].message
    turns = [
        {"role": "developer", "content": "Be brief"},
        *HELLO,
        said.model_dump(),
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "you?"}]},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=turns, temperature=0, max_completion_tokens=8)
    same = [Message("system", "Be brief"), Message("user", "Hello"), Message("assistant", said.content)]
    assert answer.choices[0].message.content == grpc_text(
        grpc_client, [*same, Message("user", "And you?")], max_tokens=8
    )


def test_a_stream_says_what_the_whole_answer_says(client):
    asked = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 40, "n": 2}
    whole = client.chat.completions.create(**asked)
    texts, roles, ends, usages = {0: "", 1: ""}, [], [], []
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content
            roles += [choice.delta.role] if choice.delta.role else []
            ends += [choice.finish_reason] if choice.finish_reason else []
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert (roles, ends) == (["assistant"] * 2, ["length"] * 2)
    assert usages[:-1] == [None] * (len(usages) - 1)
    assert usages[-1].completion_tokens == whole.usage.completion_tokens == 80


def test_a_stream_has_usage_only_where_it_is_asked_for(web):
    with web.stream(
        "POST", "/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "max_tokens": 2, "stream": True}
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert all(line.startswith("data: {") for line in lines[:-1])
    assert lines[-1] == "data: [DONE]"
    assert not any("usage" in line for line in lines)


def test_the_temperature_is_one_unless_it_is_said(client):
    asked = {"model": MODEL, "prompt": "Once", "seed": 11, "max_tokens": 30}
    unsaid = client.completions.create(**asked).choices[0].text
    assert unsaid == client.completions.create(**asked, temperature=1).choices[0].text
    assert unsaid != client.completions.create(**asked, temperature=0).choices[0].text
    other = client.completions.create(**(asked | {"seed": -11})).choices[0].text
    assert other == client.completions.create(**(asked | {"seed": -11})).choices[0].text
    assert other != unsaid


def test_greedy_needs_no_word_on_what_else_may_be_drawn(client):
    asked = {"model": MODEL, "prompt": "Once", "max_tokens": 12, "temperature": 0}
    plain = client.completions.create(**asked).choices[0].text
    narrowed = client.completions.create(**asked, top_p=0.5, extra_body={"top_k": 3, "min_p": 0.1})
    assert narrowed.choices[0].text == plain


def test_settings_reach_the_sampler(client, grpc_client):
    asked = {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": -0.5, "seed": 5}
    theirs = grpc_text(grpc_client, "Once", max_tokens=40, top_k=20, repetition_penalty=1.1, **asked)
    extra = {"top_k": 20, "repetition_penalty": 1.1, "ignore_eos": False, "min_tokens": 0}
    ours = client.completions.create(model=MODEL, prompt="Once", max_tokens=40, extra_body=extra, **asked)
    assert ours.choices[0].text == theirs


def test_stop_strings_end_an_answer(client):
    asked = {"model": MODEL, "prompt": "Stop", "temperature": 0, "max_tokens": 40}
    text = client.completions.create(**asked).choices[0].text
    for stop in (text[10:12], ["never there", text[10:12]]):
        (choice,) = client.completions.create(**asked, stop=stop).choices
        assert (choice.text, choice.finish_reason) == (text[: text.index(text[10:12])], "stop")


def test_an_answer_that_ends_by_itself_says_stop(client):
    (choice,) = client.completions.create(model=MODEL, prompt="1234567\x04", temperature=0).choices
    assert (choice.text, choice.finish_reason) == ("", "stop")


def test_completion_logprobs_have_offsets_in_the_text(client):
    asked = {"model": MODEL, "prompt": "Hello", "temperature": 0, "max_tokens": 6, "logprobs": 2}
    (choice,) = client.completions.create(**asked).choices
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == [0, 1, 2, 3, 4, 5]
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())
    offsets = []
    for chunk in client.completions.create(**asked, stream=True):
        offsets += chunk.choices[0].logprobs.text_offset
    assert offsets == logprobs.text_offset


def test_prompts_are_answered_in_their_order(client, grpc_client):
    prompts = ["One", "Two", "Three"]
    expected = [grpc_text(grpc_client, prompt, max_tokens=20) for prompt in prompts for _ in range(2)]
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 20, "n": 2}
    answer = client.completions.create(**asked, prompt=prompts)
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage.prompt_tokens == len("OneTwoThree")
    assert answer.usage.completion_tokens == 6 * 20
    tokens = client.completions.create(**asked, prompt=[list(prompt.encode()) for prompt in prompts])
    assert [choice.text for choice in tokens.choices] == expected
    single = client.completions.create(**asked, prompt=list(b"Two"))
    assert [choice.text for choice in single.choices] == expected[2:4]
    texts = [""] * 6
    for chunk in client.completions.create(**asked, prompt=prompts, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected


async def test_many_streams_at_once_do_not_mix(served, grpc_client):
    prompts = [f"Stream {number}" for number in range(24)]
    expected = await asyncio.to_thread(lambda: [grpc_text(grpc_client, prompt, max_tokens=32) for prompt in prompts])

    async def streamed(prompt: str) -> str:
        stream = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=32, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with openai.AsyncOpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:
        assert await asyncio.gather(*map(streamed, prompts)) == expected


def test_a_missed_sla_of_the_class_does_not_cut_the_answer(client, grpc_client):
    """The batch class has one of 1 ms, whose misses end in a partial answer elsewhere."""
    urgent = {"x-headrace-class": "batch"}
    answer = client.completions.create(model=MODEL, prompt="Late", temperature=0, max_tokens=64, extra_headers=urgent)
    assert answer.choices[0].text == grpc_text(grpc_client, "Late", max_tokens=64)


def test_models_are_listed_and_found(client):
    models = {model.id: model for model in client.models.list()}
    assert set(models) == {MODEL, "tiny"}
    assert models[MODEL].object == "model"
    assert models[MODEL].max_model_len == reference.CONTEXT_TOKENS
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("a/b")


def test_chat_logprobs_name_tokens_bytes_and_others(client, grpc_client):
    asked = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 5, "logprobs": True}
    theirs = grpc_client.generate(MODEL, [Message("user", "Hello")], max_tokens=5, logprobs=3).logprobs
    whole = client.chat.completions.create(**asked, top_logprobs=3).choices[0]
    streamed = []
    for chunk in client.chat.completions.create(**asked, top_logprobs=3, stream=True):
        streamed += chunk.choices[0].logprobs.content
    assert streamed == whole.logprobs.content
    assert "".join(each.token for each in streamed) == whole.message.content
    for ours, expected in zip(whole.logprobs.content, theirs, strict=True):
        assert bytes(ours.bytes).decode() == ours.token == chr(expected.chosen.token_id)
        assert ours.logprob == pytest.approx(expected.chosen.logprob)
        assert [other.token for other in ours.top_logprobs] == [chr(other.token_id) for other in expected.top]
    bare = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [(each.token, each.top_logprobs) for each in bare] == [(each.token, []) for each in streamed]


async def test_an_asynchronous_chat_is_answered(served):
    async with openai.AsyncOpenAI(base_url=served.base_url, api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, user="mill")
        stream = client.chat.completions.stream(model=MODEL, messages=HELLO, max_tokens=3, temperature=0)
        async with stream as events:
            text = "".join([event.delta async for event in events if event.type == "content.delta"])
    assert answer.usage.completion_tokens == 3
    assert len(text) == 3


def test_a_bias_forces_or_bans_a_token(client, grpc_client):
    asked = {"model": MODEL, "prompt": "Once", "temperature": 0, "max_tokens": 8}
    plain = client.completions.create(**asked).choices[0].text
    forced = client.completions.create(**asked, logit_bias={str(ord("z")): 100}).choices[0].text
    assert forced == "z" * 8 == grpc_text(grpc_client, "Once", max_tokens=8, logit_bias={ord("z"): 100.0})
    banned = client.completions.create(**asked, logit_bias={str(ord(plain[0])): -100}).choices[0].text
    assert plain[0] not in banned
    assert client.completions.create(**asked, logit_bias={}).choices[0].text == plain


@pytest.mark.parametrize(
    "given",
    [{"x": 1}, {"-1": 1}, {"99999": 1}, {"4294967296": 1}, {"5": 101}, {"5": "1"}, {"5": None}, [5], "5",
     {str(token): 1 for token in range(301)}],
    ids=lambda given: str(given)[:20],
)  # fmt: skip
def test_a_bias_that_is_none_is_named(web, given):
    answer = web.post("/v1/completions", json={"model": MODEL, "prompt": "x", "logit_bias": given})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("logit_bias")


@pytest.mark.parametrize("prompt", ["Once ", list(b"Once ")], ids=["text", "tokens"])
def test_an_echo_puts_the_prompt_before_each_answer(client, prompt):
    asked = {"model": MODEL, "prompt": [prompt, "Twice"], "temperature": 0, "max_tokens": 6, "n": 2}
    plain = [choice.text for choice in client.completions.create(**asked).choices]
    expected = [said + text for said, text in zip(["Once ", "Once ", "Twice", "Twice"], plain, strict=True)]
    assert [choice.text for choice in client.completions.create(**asked, echo=True).choices] == expected
    texts = [""] * 4
    for chunk in client.completions.create(**asked, echo=True, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**asked, echo=True, logprobs=1)
    assert refused.value.param == "logprobs"
