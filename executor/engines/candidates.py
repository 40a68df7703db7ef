"""A step's output out of engines that find the best candidates themselves. Implements StepOutput."""

import numpy as np

from headrace.executor.engines.protocol import Float32, Int32


class CandidateOutput:
    """Views of the last step's output: each row's K best entries in no order [R, K], and all its logits [R, V].

    A stable sort in the engine takes a large part of a step, so the order is made here, when asked for.
    """

    def __init__(self, ids: Int32, values: Float32, logits: Float32) -> None:
        self._ids = ids
        self._values = values
        self._logits = logits
        self._ordered: tuple[Int32, Float32] | None = None

    @property
    def best(self) -> tuple[Int32, Float32]:
        best: Float32 = self._values.max(axis=1)
        ids: Int32 = np.where(self._values == best[:, None], self._ids, self._logits.shape[1]).min(axis=1)
        return ids, best

    @property
    def candidate_ids(self) -> Int32:
        return self._in_order()[0]

    @property
    def candidate_logits(self) -> Float32:
        return self._in_order()[1]

    def logits(self, row: int) -> Float32:
        row_logits: Float32 = self._logits[row]
        return row_logits

    def _in_order(self) -> tuple[Int32, Float32]:
        if self._ordered is None:
            order = np.lexsort((self._ids, -self._values))
            ids: Int32 = np.take_along_axis(self._ids, order, axis=1)
            values: Float32 = np.take_along_axis(self._values, order, axis=1)
            for row, last in enumerate(values[:, -1]):
                ties = np.count_nonzero(values[row] == last)  # which of the equal ones came in was the graph's choice
                ids[row, -ties:] = np.flatnonzero(self._logits[row] == last)[:ties]
            self._ordered = ids, values
        return self._ordered
