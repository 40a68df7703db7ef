"""Requests by the column, as traces have them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Rows in order of time; `times` in seconds from the first, None where only lengths are known. `origin` says in a
    line what the rows are."""

    times: NDArray[np.float64] | None
    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    origin: str
    tenants: tuple[str, ...] | None = None
