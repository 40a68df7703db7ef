"""What an answer's text must be, as OpenAI's clients and vLLM's say it: `response_format`, and vLLM's `guided_*`."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.api.types.v1 import types_pb2
from headrace.core.errors import InvalidRequest
from headrace.gateway.openai.body import Body


class JsonSchema(Body):
    """The schema is kept whether `strict` or not."""

    name: str | None = None
    description: str | None = None
    strict: bool = False
    content: Annotated[dict[str, Any], Field(alias="schema")]


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Constrained(Body):
    """The fields of a body that say so."""

    response_format: ResponseFormat | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def constrain(self, sampling: types_pb2.Sampling) -> None:
        """Raises InvalidRequest where several hold, or the schema is missing."""
        form = self.response_format
        bound = form is not None and form.type != "text"
        guides = {"regex": self.guided_regex, "choice": self.guided_choice, "grammar": self.guided_grammar}
        given = {name: value for name, value in guides.items() if value is not None}
        if bound + len(given) > 1:
            field = f"guided_{next(iter(given))}"
            raise InvalidRequest(f"{field} is not all that the answer is bound to", field=field, limit="one of them")
        if form is not None and (form.json_schema is not None) != (form.type == "json_schema"):
            raise InvalidRequest(
                "response_format.json_schema goes with the type json_schema, and that with it",
                field="response_format.json_schema",
                limit="with type json_schema",
            )
        if form is not None and form.json_schema is not None:
            sampling.json_schema = json.dumps(form.json_schema.content)
        elif bound:
            sampling.json_object = True
        for name, value in given.items():
            if name == "choice":
                sampling.choice.SetInParent()
                sampling.choice.texts.extend(self.guided_choice or [])
            else:
                setattr(sampling, name, value)
