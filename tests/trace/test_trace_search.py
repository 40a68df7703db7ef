"""What `headrace trace` finds: requests by what they were and how they went, a batch's members, two side by side."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from typer.testing import CliRunner

from headrace.chassis import signals
from headrace.cli.comparison import compare
from headrace.cli.moments import moment, unix_ns
from headrace.cli.trace import trace
from headrace.core.errors import InvalidRequest, NotFound
from headrace.standalone.span_reader import open_reader
from headrace.standalone.span_search import Search, batch_of, search

MS = 10**6
BEGIN_NS = unix_ns(datetime(2026, 1, 31, 12, tzinfo=UTC))
CALLS = {  # minutes after the beginning, class, tenant, milliseconds, error
    "quick": (0, "realtime", "acme", 20, ""),
    "slow": (1, "normal", "acme", 900, ""),
    "failed": (2, "batch", "other", 40, "QUEUE_FULL"),
    "last": (3, "batch", "acme-2", 300, ""),
}


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(trace)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})


def listed(database: Path, *arguments: str) -> list[str]:
    result = run("--database", str(database), *arguments)
    assert result.exit_code == 0, result.exception
    return [line.split()[0] for line in result.output.splitlines()[1:]]


@pytest.fixture
async def calls(collecting: Any) -> Path:
    def record() -> None:
        with collecting.tracer("gateway") as gateway:
            for name, (minute, qos, tenant, took_ms, error) in CALLS.items():
                begin_ns = BEGIN_NS + minute * 60_000 * MS
                span = gateway.start_span(signals.GATEWAY_GENERATE, start_time=begin_ns)
                # the other tenant's name stands in every span: only the attribute itself counts
                span.set_attributes({signals.REQUEST_ID: name, "headrace.note": "acme other"})
                span.set_attributes({signals.QOS_CLASS: qos, signals.TENANT: tenant})
                if error:
                    span.set_status(Status(StatusCode.ERROR, f"{error} said so"))
                span.end(begin_ns + took_ms * MS)

    await asyncio.to_thread(record)
    return collecting.database  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--list",), ["last", "failed", "slow", "quick"]),
        (("--list", "--limit", "2"), ["last", "failed"]),
        (("--class", "batch"), ["last", "failed"]),
        (("--tenant", "acme"), ["slow", "quick"]),
        (("--tenant", "acme", "--class", "batch"), []),
        (("--slow", "300"), ["last", "slow"]),
        (("--slowest", "--limit", "2"), ["slow", "last"]),
        (("--failed",), ["failed"]),
        (("--since", "2026-01-31T12:01:00+00:00"), ["last", "failed", "slow"]),
        (("--since", "2026-01-31T12:01:00+00:00", "--until", "2026-01-31T12:03:00+00:00"), ["failed", "slow"]),
        (("--since", "1s"), []),
    ],
)
def test_requests_are_found_by_what_they_were(calls: Path, options: tuple[str, ...], found: list[str]) -> None:
    assert listed(calls, *options) == found


def test_the_list_says_how_each_ended(calls: Path) -> None:
    output = run("--failed", "--database", str(calls)).output
    assert "QUEUE_FULL said so" in output
    assert "40.0 ms" in output


def test_a_limit_stops_the_reading(calls: Path) -> None:
    with open_reader(calls) as reader:
        assert len(search(reader, Search(tenant="acme", limit=1))) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("quick", "--failed"),
        ("--batch", "b", "--last"),
        ("--batch", "b", "--with", "quick"),
        ("--failed", "--with", "quick"),
        ("--since", "yesterday"),
        ("--until", "1e9999d"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert isinstance(run(*arguments, "--database", str(tmp_path / "none")).exception, InvalidRequest)


def test_moments() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert moment("90s", now, "since") == datetime(2026, 1, 31, 11, 58, 30, tzinfo=UTC)
    assert moment("1.5h", now, "since") == datetime(2026, 1, 31, 10, 30, tzinfo=UTC)
    assert moment("2d", now, "since") == datetime(2026, 1, 29, 12, tzinfo=UTC)
    assert moment("2026-01-30", now, "since") == datetime(2026, 1, 30, tzinfo=UTC)
    for nonsense in ("", "10", "10 m", "-5m", "9" * 20 + "d", "2026-13-01"):
        with pytest.raises(InvalidRequest) as caught:
            moment(nonsense, now, "since")
        assert caught.value.field == "since"


@pytest.fixture
async def batched(collecting: Any) -> Path:
    """Three requests of one trace in one batch, the second one first; the third one's call is not kept."""

    def record() -> None:
        with collecting.tracer("gateway") as gateway, collecting.tracer("scheduler") as scheduler:
            batch = scheduler.start_span(signals.SCHEDULER_BATCH, start_time=BEGIN_NS + 50 * MS)
            batch.set_attributes({signals.BATCH_ID: "e1-7", signals.BATCH_SIZE: 3, signals.BATCH_CLOSE_REASON: "full"})
            for place, name in enumerate(("first", "second", "third")):
                call = gateway.start_span(signals.GATEWAY_GENERATE, start_time=BEGIN_NS)
                call.set_attributes({signals.REQUEST_ID: name, signals.GENAI_FINISH_REASONS: ("stop",)})
                queue = scheduler.start_span(
                    signals.SCHEDULER_QUEUE, set_span_in_context(call), start_time=BEGIN_NS + place * MS
                )
                queue.set_attributes(
                    {
                        signals.REQUEST_ID: f"{name}.0a1b",
                        signals.QUEUE_POSITION: (1, 0, 2)[place],
                        signals.WAIT_REASON: "slots",
                        signals.BATCH_ID: "e1-7",
                    }
                )
                queue.add_link(batch.get_span_context())
                batch.add_link(queue.get_span_context())
                queue.end(BEGIN_NS + 50 * MS)
                if name != "third":
                    call.end(BEGIN_NS + (100 + 100 * place) * MS)
            batch.end(BEGIN_NS + 51 * MS)

    await asyncio.to_thread(record)
    return collecting.database  # type: ignore[no-any-return]


@pytest.mark.parametrize("identifier", ["e1-7", "first", "second", "third.0a1b"])
def test_a_batch_is_followed_to_its_members_and_back(batched: Path, identifier: str) -> None:
    with open_reader(batched) as reader:
        batch, members = batch_of(reader, identifier)
        assert batch.attributes[signals.BATCH_ID] == "e1-7"
        assert [member.request_id for member in members] == ["second", "first", "third.0a1b"]
        for member in members:
            assert batch_of(reader, member.request_id)[0].span_id == batch.span_id
        with pytest.raises(NotFound):
            batch_of(reader, "e1-")  # what may begin a trace id, which are random, could be one
    lines = run("--batch", identifier, "--database", str(batched)).output.splitlines()
    assert lines[0].split() == ["batch", "e1-7", "members", "3", "closed", "full"]
    assert [line.split()[0] for line in lines[3:]] == ["second", "first", "third.0a1b"]
    assert "no longer kept" in lines[5]


def test_the_waterfall_names_the_batch(batched: Path) -> None:
    assert "batch e1-7" in run("first", "--database", str(batched)).output


def test_two_requests_stand_side_by_side(batched: Path) -> None:
    with open_reader(batched) as reader:
        rows = compare(reader.find("first"), reader.find("second"))
    stages = [(row.name, row.first, row.second, row.difference, row.stands_out) for row in rows if row.is_stage]
    assert stages == [
        (signals.GATEWAY_GENERATE, "100 ms", "200 ms", "+100 ms", True),
        (signals.SCHEDULER_QUEUE, "50.0 ms", "49.0 ms", "-1.00 ms", False),
    ]
    said = [(row.name, row.first, row.second) for row in rows if not row.is_stage]
    assert said == [("position", "1", "0")]
    output = run("first", "--with", "second", "--database", str(batched)).output
    assert output.splitlines()[0].split() == ["first", "second", "difference"]
    assert "+100 ms" in output


def test_a_stage_that_one_of_them_never_reached_is_empty(batched: Path) -> None:
    with open_reader(batched) as reader:
        whole = reader.find("first")
        rows = compare(whole, [span for span in whole if span.name != signals.SCHEDULER_QUEUE])
    (queue,) = (row for row in rows if row.name == signals.SCHEDULER_QUEUE)
    assert (queue.second, queue.difference, queue.stands_out) == ("", "", False)
