"""Chat templates: what they may use, and how they fail."""

from dataclasses import dataclass
from datetime import datetime

import pytest

from headrace.core.errors import InvalidRequest
from headrace.preprocess.template import ChatTemplate
from headrace.preprocess.text_models import TextModel


@dataclass(frozen=True)
class Turn:
    role: str
    content: str


HELLO = [Turn("user", "héllo <b>")]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}{{ m['role'] }}:{{ m.content }};{% endfor %}", "user:héllo <b>;"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "héllo <b>"}]'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", "01"),
        ("{% for n in range(3) %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% endfor %}", "02"),
        ("a\n    {% if true %}\nb\n    {% endif %}\nc", "a\nb\nc"),
        ("{{ strftime_now('%Y') }}", f"{datetime.now():%Y}"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{{ bos_token }}{% if add_generation_prompt %}go{% endif %}", "<s>go"),
        ("{{ tools is defined }}{{ nobody }}", "False"),
    ],
)
def test_renders(source: str, text: str) -> None:
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO) == text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "Expected"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ nobody.home }}", "nobody"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ range(10**9) | list }}", "Range too big"),
        ("", "no chat template"),
    ],
)
def test_what_goes_wrong_inside_is_an_invalid_request(source: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        ChatTemplate(source, {}).render(HELLO)
    assert caught.value.field == "chat"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "chat.messages"),
        ([Turn("user", "a"), Turn("robot", "b")], "chat.messages[1].role"),
        ([Turn("", "a")], "chat.messages[0].role"),
    ],
)
def test_refuses_a_chat_that_is_none(messages: list[Turn], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate("{{ messages }}", {}).render(messages)
    assert caught.value.field == field
    assert caught.value.limit


def test_the_template_of_smollm2(smollm2: TextModel) -> None:
    text = smollm2.template.render([Turn("system", "Be brief."), Turn("user", "Hi")])
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    token_ids = smollm2.tokenizer.encode(text, add_special_tokens=False).tolist()
    assert [smollm2.tokenizer.token(token) for token in token_ids[:2]] == ["<|im_start|>", "system"]
