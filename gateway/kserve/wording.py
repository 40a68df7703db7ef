"""Errors of the gateway's own calls, in this door's words: its callers know tensors and parameters, not our fields."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import HeadraceError
from headrace.gateway.kserve import catalogue as names

_FIELDS = {
    "model": "model_name",
    "request_id": "id",
    "tokens.token_ids": names.INPUT_IDS,
    "texts": names.TEXT,
    "pooling": "parameters.pooling",
    "dimensions": "parameters.dimensions",
    "qos_class": "parameters.qos_class",
    "precision": "parameters.precision",
}
_PREFIXES = {"sampling.": "parameters.", "sla.": "parameters.sla_", "texts[": f"{names.TEXT}["}


@contextmanager
def reworded() -> Iterator[None]:
    """What is raised inside names the field as this door has it; the rest of it stays."""
    try:
        yield
    except HeadraceError as error:
        field = _renamed(error.field)
        message = error.message
        if error.field and message.startswith(f"{error.field} "):
            message = field + message.removeprefix(error.field)
        raise type(error)(
            message, field=field, limit=error.limit, retry_after_s=error.retry_after_s, category=error.category
        ) from error


def _renamed(field: str) -> str:
    for prefix, ours in _PREFIXES.items():
        if field.startswith(prefix):
            return ours + field.removeprefix(prefix)
    return _FIELDS.get(field, field)
