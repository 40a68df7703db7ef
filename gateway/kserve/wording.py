"""Errors of the gateway's own calls, in this door's words: its callers know tensors and parameters, not our fields."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import HeadraceError
from headrace.gateway.kserve import catalogue as names
from headrace.gateway.wording import Wording

_WORDING = Wording(
    fields={
        "model": "model_name",
        "request_id": "id",
        "tokens.token_ids": names.INPUT_IDS,
        "texts": names.TEXT,
        "pooling": "parameters.pooling",
        "dimensions": "parameters.dimensions",
        "qos_class": "parameters.qos_class",
        "precision": "parameters.precision",
    },
    prefixes={"sampling.": "parameters.", "sla.": "parameters.sla_", "texts[": f"{names.TEXT}["},
)


@contextmanager
def reworded() -> Iterator[None]:
    """What is raised inside names the field as this door has it; the rest of it stays."""
    try:
        yield
    except HeadraceError as error:
        raise _WORDING.of(error) from error
