"""What an answer's text must be: what a schema allows, a regular expression, one of several texts, a grammar's.

Values and their bounds; whether a schema or a grammar is a valid one is for models/grammar.py to say.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.core.errors import InvalidRequest

MAX_CONSTRAINT_BYTES = 64 * 1024
MAX_CHOICES = 1024


class ConstraintKind(StrEnum):
    """Values are the names of the fields on the wire."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Constraint:
    """`text` is the schema, the expression or the grammar; `texts` those of which the answer is to be one."""

    kind: ConstraintKind
    text: str = ""
    texts: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Of the request."""
        return f"sampling.{self.kind.value}"

    def validate(self) -> None:
        """Raises InvalidRequest where there is nothing in it, or more than can be taken."""
        num_bytes = sum(len(text.encode(errors="replace")) for text in (self.text, *self.texts))
        if num_bytes > MAX_CONSTRAINT_BYTES:
            raise InvalidRequest(
                f"{self.field} has {num_bytes} bytes, must have {MAX_CONSTRAINT_BYTES} at most",
                field=self.field,
                limit=f"{MAX_CONSTRAINT_BYTES} bytes",
            )
        if self.kind is ConstraintKind.CHOICE:
            if not 1 <= len(self.texts) <= MAX_CHOICES or not all(self.texts):
                raise InvalidRequest(
                    f"{self.field} must be 1 to {MAX_CHOICES} texts, none of them empty",
                    field=self.field,
                    limit=f"1..{MAX_CHOICES} texts",
                )
        elif self.kind is not ConstraintKind.JSON_OBJECT and not self.text:
            raise InvalidRequest(f"{self.field} is empty", field=self.field, limit="1 character at least")
