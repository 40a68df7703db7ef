"""What all parts of a scenario file have in common: unknown keys and endless numbers are faults."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A table of a scenario file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
