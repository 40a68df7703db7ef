"""Errors of the gateway's own calls in the words of another door, whose callers do not know our fields."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Wording:
    """What a door calls our fields: by name, else by how the name begins; else as we do."""

    fields: Mapping[str, str]
    prefixes: Mapping[str, str]

    def of(self, error: HeadraceError) -> HeadraceError:
        """The same error with the door's field, in its message too."""
        field = self._renamed(error.field)
        message = error.message
        if error.field and message.startswith(f"{error.field} "):
            message = field + message.removeprefix(error.field)
        elif "." in error.field:  # nothing else is written so
            message = message.replace(error.field, field)
        return type(error)(
            message, field=field, limit=error.limit, retry_after_s=error.retry_after_s, category=error.category
        )

    def _renamed(self, field: str) -> str:
        if field in self.fields:
            return self.fields[field]
        for prefix, theirs in self.prefixes.items():
            if field.startswith(prefix):
                return theirs + field.removeprefix(prefix)
        return field
