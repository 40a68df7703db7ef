"""The collector keeps what exporters send, refuses what it cannot keep, and its file outlives it."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from headrace.chassis.config import TransportSettings
from headrace.core.errors import ConfigError, DeadlineMissed, Unavailable
from headrace.standalone.span_reader import open_reader, wait_for_trace
from headrace.standalone.span_rows import rows_of
from headrace.standalone.span_store import open_store
from headrace.standalone.spans import collector, default_database

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def export_of(num_spans: int, first: int = 1, payload: str = "") -> ExportTraceServiceRequest:
    """Spans 1, 2, … of one trace, each a millisecond long."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in range(first, first + num_spans):
        span = spans.add(trace_id=b"\1" * 16, span_id=number.to_bytes(8), name=f"gateway.{number}")
        span.start_time_unix_nano, span.end_time_unix_nano = number * 10**6, (number + 1) * 10**6
        if payload:
            span.attributes.add(key="payload").value.string_value = payload
    return request


async def export(address: str, data: bytes) -> ExportTraceServiceResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        answer: bytes = await channel.unary_unary(EXPORT)(data, timeout=10)
        return ExportTraceServiceResponse.FromString(answer)


def stored_names(database: Path) -> list[str]:
    connection = sqlite3.connect(database)
    try:
        return [name for (name,) in connection.execute("SELECT name FROM spans ORDER BY seq")]
    finally:
        connection.close()


async def test_a_request_of_four_services_is_one_trace_with_its_batch(collecting: Any, record_request: Any) -> None:
    await asyncio.to_thread(record_request, collecting, "r1")
    spans = await wait_for_trace(collecting.database, "r1", 10)
    own = {span.name: span for span in spans if not span.linked}
    assert {name: span.service for name, span in own.items()} == {
        "gateway.generate": "headrace-gateway",
        "preprocess.prepare": "headrace-preprocess",
        "scheduler.queue": "headrace-scheduler",
        "executor.prefill": "headrace-executor",
        "executor.decode": "headrace-executor",
    }
    root = own["gateway.generate"]
    assert root.parent_id == ""
    assert {span.parent_id for span in own.values() if span is not root} == {root.span_id}
    (batch,) = [span for span in spans if span.linked]
    queue = own["scheduler.queue"]
    assert batch.trace_id != root.trace_id
    assert queue.links == ((batch.trace_id, batch.span_id),)
    assert batch.links == ((queue.trace_id, queue.span_id),)


async def test_waiting_for_a_trace_that_does_not_come_ends(collecting: Any) -> None:
    with pytest.raises(DeadlineMissed, match="r9"):
        await wait_for_trace(collecting.database, "r9", 0.2)


async def test_requests_of_one_trace_are_told_apart(collecting: Any) -> None:
    request = export_of(4)
    spans = request.resource_spans[0].scope_spans[0].spans
    for number, span in enumerate(spans):  # two gateway spans, each with a child, under one caller's trace
        if number % 2 == 0:
            span.attributes.add(key="headrace.request.id").value.string_value = f"r{number}"
        else:
            span.parent_span_id = spans[number - 1].span_id
    await export(collecting.address, request.SerializeToString())
    with open_reader(collecting.database) as reader:
        assert [span.name for span in reader.find("r2")] == ["gateway.3", "gateway.4"]
        assert len(reader.find("01" * 16)) == 4


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\n\x05\n", b"\x0a\x02\x12\x7f"])
async def test_bytes_that_are_no_export_are_the_callers_fault(collecting: Any, data: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await export(collecting.address, data)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await export(collecting.address, export_of(1).SerializeToString())
    assert stored_names(collecting.database) == ["gateway.1"]


async def test_an_oversized_export_is_refused_and_the_next_is_kept(collecting: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await export(collecting.address, export_of(1, payload="x" * 5 * 2**20).SerializeToString())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await export(collecting.address, export_of(1).SerializeToString())
    assert stored_names(collecting.database) == ["gateway.1"]


@pytest.mark.parametrize(
    "fault",
    [
        {"trace_id": b"short"},
        {"trace_id": b"\0" * 16},
        {"span_id": b""},
        {"parent_span_id": b"123"},
        {"end_time_unix_nano": 1},
        {"end_time_unix_nano": 2**64 - 1},
    ],
)
async def test_an_unsound_span_is_refused_alone(collecting: Any, fault: dict[str, Any]) -> None:
    request = export_of(3)
    unsound = request.resource_spans[0].scope_spans[0].spans[1]
    for name, value in fault.items():
        setattr(unsound, name, value)
    response = await export(collecting.address, request.SerializeToString())
    assert response.partial_success.rejected_spans == 1
    assert response.partial_success.error_message
    assert stored_names(collecting.database) == ["gateway.1", "gateway.3"]
    only = ExportTraceServiceRequest()
    only.resource_spans.add().scope_spans.add().spans.append(unsound)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await export(collecting.address, only.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_span_sent_twice_is_kept_once_and_an_empty_export_is_fine(collecting: Any) -> None:
    for request in (export_of(2), export_of(2), ExportTraceServiceRequest()):
        response = await export(collecting.address, request.SerializeToString())
        assert not response.partial_success.rejected_spans
    assert sorted(stored_names(collecting.database)) == ["gateway.1", "gateway.2"]


async def test_exports_at_once_are_all_kept(collecting: Any) -> None:
    exports = [export_of(10, 1 + 10 * number).SerializeToString() for number in range(30)]
    await asyncio.gather(*(export(collecting.address, data) for data in exports))
    assert len(stored_names(collecting.database)) == 300


def test_the_oldest_spans_leave_first(tmp_path: Path) -> None:
    with open_store(tmp_path / "s.sqlite", max_spans=10) as store:
        for number in range(1, 26):
            store.write(rows_of(export_of(1, number))[0])
    assert stored_names(tmp_path / "s.sqlite") == [f"gateway.{number}" for number in range(16, 26)]


def test_bytes_are_bounded_too_and_the_file_stops_growing(tmp_path: Path) -> None:
    database, sizes = tmp_path / "s.sqlite", []
    with open_store(database, max_bytes=400_000) as store:
        for number in range(1, 101):
            store.write(rows_of(export_of(1, number, payload="x" * 10_000))[0])
            sizes.append(database.stat().st_size + Path(f"{database}-wal").stat().st_size)
    kept = stored_names(database)
    assert 35 <= len(kept) <= 40
    assert kept[-1] == "gateway.100"
    assert max(sizes) < 6_000_000


def test_a_locked_store_is_unavailable_and_unharmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.standalone.span_store.LOCK_WAIT_S", 0.05)
    with open_store(tmp_path / "s.sqlite") as store:
        other = sqlite3.connect(tmp_path / "s.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            store.write(rows_of(export_of(1))[0])
        other.execute("ROLLBACK")
        other.close()
        store.write(rows_of(export_of(1, 2))[0])
    assert stored_names(tmp_path / "s.sqlite") == ["gateway.2"]


@pytest.mark.parametrize("content", [b"this is no database, whatever its name may say" * 100, None])
def test_what_is_no_span_store_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(content) if content else path.mkdir()
    with pytest.raises(ConfigError, match=r"s\.sqlite"), open_store(path):
        pass
    assert path.read_bytes() == content if content else path.is_dir()


def test_a_store_of_another_format_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "s.sqlite")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="99"), open_store(tmp_path / "s.sqlite"):
        pass


async def test_an_address_in_use_is_named(collecting: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        async with collector(collecting.address, tmp_path / "other.sqlite", transport=TransportSettings()):
            pass


_COLLECT = """
import asyncio, sys
from pathlib import Path
from headrace.chassis.config import TransportSettings
from headrace.standalone.spans import collector

async def main() -> None:
    async with collector("127.0.0.1:0", Path(sys.argv[1]), transport=TransportSettings()) as address:
        print(address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_spans_outlive_a_killed_collector(tmp_path: Path) -> None:
    database = default_database(tmp_path)
    for number in (1, 2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _COLLECT, str(database), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        address = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        await export(address, export_of(1, number).SerializeToString())
        process.send_signal(signal.SIGKILL)
        await process.wait()
        with open_reader(database) as reader:
            assert [span.name for span in reader.recent(5)] == [f"gateway.{kept}" for kept in range(number, 0, -1)]
