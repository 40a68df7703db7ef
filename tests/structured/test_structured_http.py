"""Constrained answers over HTTP, as OpenAI's own client asks for them."""

import json

import jsonschema
import openai
import pytest

HELLO = [{"role": "user", "content": "Describe a river as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {"river": {"type": "string", "maxLength": 20}, "km": {"type": "integer", "maximum": 9999}},
    "required": ["river", "km"],
    "additionalProperties": False,
}


@pytest.fixture
def http(served):
    with openai.OpenAI(base_url=f"http://{served.http}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(http, **options):
    asked = {"model": "smollm2", "messages": HELLO, "max_tokens": 80, "temperature": 0} | options
    return http.chat.completions.create(**asked)


def bound_to(schema):
    return {"type": "json_schema", "json_schema": {"name": "river", "strict": True, "schema": schema}}


def test_a_json_schema(http, client):
    answer = ask(http, response_format=bound_to(SCHEMA)).choices[0]
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.message.content), SCHEMA)
    over_grpc = client.generate("smollm2", HELLO, json_schema=SCHEMA, max_tokens=80)
    assert over_grpc.text == answer.message.content


def test_a_stream_of_several_answers(http):
    texts = ["", ""]
    for chunk in ask(http, response_format=bound_to(SCHEMA), stream=True, n=2, temperature=1.0, seed=5):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_any_json_object(http):
    answer = ask(http, response_format={"type": "json_object"}, max_tokens=8).choices[0]
    assert answer.message.content.startswith("{")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("guided_choice", ["up", "down"], {"up", "down"}),
        ("guided_regex", "[ab]", {"a", "b"}),
        ("guided_grammar", 'start: "left" | "right"', {"left", "right"}),
    ],
)
def test_guides_as_vllm_has_them(http, option, value, allowed):
    completion = http.completions.create(model="smollm2", prompt="Say: ", max_tokens=9, extra_body={option: value})
    assert completion.choices[0].text in allowed


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": bound_to({"type": "nothing"})}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice"),
        ({"extra_body": {"guided_grammar": "start: nothing"}}, "guided_grammar"),
        ({"extra_body": {"guided_grammar": 'start: "a"', "guided_regex": "a"}}, "guided_regex"),
        ({"response_format": bound_to(SCHEMA), "extra_body": {"guided_regex": "a"}}, "guided_regex"),
        ({"response_format": bound_to(SCHEMA), "extra_body": {"min_tokens": 4}}, "min_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_names_its_field(http, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(http, **options)
    assert refused.value.param == param
    assert param in refused.value.message


def test_text_is_free(http):
    assert ask(http, response_format={"type": "text"}, max_tokens=5).usage.completion_tokens == 5
