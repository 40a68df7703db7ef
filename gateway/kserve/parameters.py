"""Parameters by name, in any of the forms that clients send them. What nobody asked for is refused, not ignored."""

import json
from collections.abc import Mapping
from typing import Any

from headrace.api.inference import inference_pb2 as pb
from headrace.core.errors import InvalidRequest

UINT32 = 2**32 - 1
UINT64 = 2**64 - 1
_SHOWN = 40
"""Characters of a caller's value that an error repeats: it must fit into a status."""


class Parameters:
    """Each reader takes a parameter out and gives None where it is not there. Raises InvalidRequest that names it.

    Numbers, flags and lists may also come as strings, as clients send them whose parameters have fewer types.
    """

    def __init__(self, values: Mapping[str, pb.InferParameter], where: str = "parameters") -> None:
        self._where = where
        self._values: dict[str, Any] = {}
        for name, value in values.items():
            kind = value.WhichOneof("parameter_choice")
            if kind is None:
                raise self._wrong(name, "has no value", "a value")
            self._values[name] = getattr(value, kind)

    def join(self, text: str, source: str) -> None:
        """Adds the members of a JSON object, which came in the tensor `source`."""
        try:
            members = json.loads(text)
        except (ValueError, RecursionError):
            members = None
        if not isinstance(members, dict):
            raise InvalidRequest(f"{source} is no JSON object", field=source, limit="a JSON object")
        for name, value in members.items():
            if name in self._values:
                raise self._wrong(name, f"is in {source} too", "one of the two")
            self._values[name] = value

    def has(self, name: str) -> bool:
        """Without taking it out."""
        return name in self._values

    def text(self, name: str) -> str | None:
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, str) or not is_utf8(value):
            raise self._wrong(name, f"is {value!r:.{_SHOWN}}, must be a string", "a string")
        return value

    def choice(self, name: str, known: Mapping[str, int]) -> int | None:
        """The number of a name."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in known:
            limit = ", ".join(known)
            raise self._wrong(name, f"is {value!r:.{_SHOWN}}, must be one of {limit}", limit)
        return known[value]

    def flag(self, name: str) -> bool | None:
        value = self._take(name)
        if isinstance(value, str):
            value = {"true": True, "false": False, "1": True, "0": False}.get(value.lower(), value)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, f"is {value!r:.{_SHOWN}}, must be true or false", "true or false")
        return value

    def integer(self, name: str, highest: int, lowest: int = 0) -> int | None:
        return self._integer(name, self._take(name), lowest, highest)

    def number(self, name: str) -> float | None:
        value = self._take(name)
        if value is None:
            return None
        try:
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                return float(value)
        except (ValueError, OverflowError):
            pass
        raise self._wrong(name, f"is {value!r:.{_SHOWN}}, must be a number", "a number")

    def integers(self, name: str, highest: int) -> list[int]:
        return [number for each in self._list(name) if (number := self._integer(name, each, 0, highest)) is not None]

    def texts(self, name: str) -> list[str]:
        """A JSON list, or one string."""
        values = self._list(name)
        if not all(isinstance(each, str) and is_utf8(each) for each in values):
            raise self._wrong(name, "has a member that is no string", "strings")
        return values

    def finish(self) -> None:
        """Refuses what is left."""
        for name in self._values:
            raise self._wrong(f"{name:.{_SHOWN}}", "is not known here", "a parameter of this model")

    def _integer(self, name: str, value: Any, lowest: int, highest: int) -> int | None:
        if value is None:
            return None
        number = value
        if isinstance(value, str):
            try:
                number = int(value)
            except ValueError:
                number = value
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number <= highest:
            limit = f"{lowest}..{highest}"
            raise self._wrong(name, f"is {value!r:.{_SHOWN}}, must be a whole number in {limit}", limit)
        return number

    def _list(self, name: str) -> list[Any]:
        value = self._take(name)
        if isinstance(value, str):
            try:
                parsed = json.loads(value)
            except (ValueError, RecursionError):
                parsed = value
            value = parsed if isinstance(parsed, list) else [value]
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def _take(self, name: str) -> Any:
        return self._values.pop(name, None)

    def _wrong(self, name: str, what: str, limit: str) -> InvalidRequest:
        field = f"{self._where}.{name}"
        return InvalidRequest(f"{field} {what}", field=field, limit=limit)


def is_utf8(text: str) -> bool:
    """JSON can spell half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
