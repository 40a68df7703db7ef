"""The slowest request of late, and where its time went."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.cli.slowest import slowest

MS = 10**6
BEGIN_NS = 1_800_000_000 * 10**9


async def test_the_slowest_since_then_is_named_with_its_longest_spans(
    collecting: Any, record_request: Callable[..., None]
) -> None:
    await asyncio.to_thread(record_request, collecting, "earlier", BEGIN_NS - 5_000 * MS)
    await asyncio.to_thread(record_request, collecting, "late", BEGIN_NS)
    line = slowest(collecting.database, BEGIN_NS - MS)
    assert line == (
        "slowest request: 100 ms, of it executor.decode 69.0 ms, executor.prefill 19.0 ms, "
        "scheduler.queue 7.00 ms (slots)\n  headrace trace late"
    )
    assert slowest(collecting.database, BEGIN_NS + MS) == ""


def test_without_spans_nothing_is_said(tmp_path: Path) -> None:
    assert slowest(tmp_path / "none.sqlite", 0) == ""
    (tmp_path / "other.sqlite").write_text("no store")
    assert slowest(tmp_path / "other.sqlite", 0) == ""
