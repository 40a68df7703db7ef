"""Request bodies: JSON to checked values. What is not done here is refused by name, never ignored."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NoReturn, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from headrace.core.errors import HeadraceError, InvalidRequest, Unsupported

UINT32 = 2**32 - 1
_SHOWN = 200
"""Characters of what a caller wrote that an error repeats."""
_UNSUPPORTED = "unsupported"

Neutral = dict[str, tuple[Any, ...]]


class Body(BaseModel):
    """An object of a request. A member that is null counts as left out.

    `neutral`: members of OpenAI's that are not done here, each with the values that ask for nothing.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        left = {name: value for name, value in given.items() if value is not None}
        for name, values in cls.neutral.items():
            if name in left and left.pop(name) not in values:
                raise PydanticCustomError(_UNSUPPORTED, "{name}", {"name": name, "values": list(values)})
        return left

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Raises InvalidRequest or Unsupported for the first that is wrong."""
        try:
            given = from_json(data, allow_inf_nan=False)
        except ValueError as error:
            raise InvalidRequest(f"body is no JSON: {error}", field="body", limit="a JSON object") from None
        if not isinstance(given, dict):
            raise InvalidRequest("body is no JSON object", field="body", limit="a JSON object")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _as_error(error.errors(include_url=False, include_input=False)[0]) from None


def wrong(message: str) -> NoReturn:
    """For validators: what the value must be."""
    raise PydanticCustomError("wrong", "{message}", {"message": message})


def _as_error(fault: ErrorDetails) -> HeadraceError:
    field = _path(fault["loc"])
    match fault["type"]:
        case "unsupported":
            name, values = fault["ctx"]["name"], fault["ctx"]["values"]
            field = f"{field}.{name}" if field else name
            allowed = "left out" + "".join(f" or {json.dumps(value)}" for value in values)
            return Unsupported(f"{field} is not supported here, must be {allowed}", field=field, limit=allowed)
        case "missing":
            return InvalidRequest(f"{field} is missing", field=field, limit="a value")
        case "extra_forbidden":
            return InvalidRequest(f"{field} is not known here", field=field, limit="left out")
        case _:
            return InvalidRequest(f"{field}: {fault['msg']}"[:_SHOWN], field=field, limit=fault["msg"][:_SHOWN])


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step[:_SHOWN]}" if path else step[:_SHOWN]
    return path


def _prompts(given: Any) -> Any:
    """Texts, or token ids as little-endian uint32."""
    many = given if isinstance(given, list) else [given]
    if many and all(type(each) is int for each in many):
        many = [many]
    if not many or not all(isinstance(each, str) or _are_token_ids(each) for each in many):
        wrong(f"must be a string, strings, token ids (0..{UINT32}), or lists of token ids")
    return many


def _are_token_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(each) is int and 0 <= each <= UINT32 for each in given)


UInt32 = Annotated[int, Field(ge=0, le=UINT32)]
Prompts = Annotated[list[str | list[int]], PlainValidator(_prompts)]
"""A string, strings, token ids or lists of token ids."""
Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
"""A string, or strings."""


def packed(token_ids: Sequence[int]) -> bytes:
    """As the gateway's messages carry them."""
    return np.array(token_ids, "<u4").tobytes()
