"""Prompts become token ids before the deadline, or not at all."""

import asyncio

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context

from headrace.gateway.generation import Wish
from headrace.gateway.ports import Preparer
from headrace.gateway.relay import deadline_missed


async def prepare(preparer: Preparer, wish: Wish, parent: Context, deadline: float | None) -> NDArray[np.uint32]:
    """Token ids [T]; those the caller sent as they are. Raises DeadlineMissed, and what the preparer raises."""
    if isinstance(wish.prompt, np.ndarray):
        return wish.prompt
    try:
        async with asyncio.timeout_at(deadline) as limit:
            return await preparer.prepare(wish.request_id, wish.model.name, wish.prompt, parent)
    except TimeoutError:
        if limit.expired():
            raise deadline_missed(0) from None
        raise
