"""Chat templates: Jinja source that comes with a model, run in a sandbox with what Hugging Face's templates expect.

The environment follows `apply_chat_template` of transformers (chat_template_utils.py).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from headrace.core.errors import InvalidRequest

ROLES = ("system", "user", "assistant")


class ChatMessage(Protocol):
    """One turn of a chat, whoever defines it."""

    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...


class ChatTemplate:
    """A model's template. `special_tokens` are variables that it may name, such as bos_token."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The text of a chat up to where the assistant's next answer begins.

        Raises InvalidRequest (field chat) for an empty chat, an unknown role, a model without a template, and for
        whatever the template itself raises.
        """
        if not messages:
            raise InvalidRequest("a chat needs at least one message", field="chat.messages", limit=">= 1 message")
        for position, message in enumerate(messages):
            if message.role not in ROLES:
                raise InvalidRequest(
                    f"message {position} has role {message.role!r}, must be one of {', '.join(ROLES)}",
                    field=f"chat.messages[{position}].role",
                    limit="|".join(ROLES),
                )
        if not self._source:
            raise InvalidRequest("the model has no chat template: send text instead", field="chat")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._compiled.render(messages=turns, add_generation_prompt=True, **self._special_tokens)
        except Exception as error:  # a template is a program of somebody else's: it may raise anything
            raise InvalidRequest(f"the model's chat template refuses this chat: {error}", field="chat") from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return _environment().from_string(self._source)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  the base class has it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
