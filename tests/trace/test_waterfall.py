"""What `headrace trace` draws, lists and writes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from rich.console import Console
from typer.testing import CliRunner

from headrace.cli.trace import trace
from headrace.cli.waterfall import MAX_ROWS, duration, render, tree
from headrace.core.errors import InvalidRequest, NotFound, Unavailable
from headrace.standalone.otlp_json import to_otlp_json
from headrace.standalone.span_reader import Span, open_reader

ROWS = ["gateway.generate", "  preprocess.prepare", "  scheduler.queue", "  executor.prefill", "  executor.decode"]


def made(name: str, start: int, end: int, span_id: str = "", parent_id: str = "", **more: Any) -> Span:
    ids = {"trace_id": "a" * 32, "span_id": span_id or name, "parent_id": parent_id}
    shown = {"name": name, "service": "headrace-gateway", "start_ns": start, "end_ns": end, "error": False}
    rest = {"error_message": "", "attributes": {}, "links": (), "events": (), "linked": False}
    blobs = {"otlp_span": b"", "otlp_resource": b"", "otlp_scope": b""}
    values: dict[str, Any] = ids | shown | rest | blobs
    return Span(**(values | more))


def drawn(spans: list[Span], width: int = 120) -> list[str]:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(render(spans, width))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(trace)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})


@pytest.fixture
async def database(collecting: Any, record_request: Any) -> Path:
    """Two requests, a second apart, oldest first."""
    await asyncio.to_thread(record_request, collecting, "alpha-1")
    await asyncio.to_thread(record_request, collecting, "alpha-2", 1_700_000_001 * 10**9)
    return collecting.database  # type: ignore[no-any-return]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_rows_are_indented_bars_lie_in_time_and_the_batch_is_below(database: Path, width: int) -> None:
    with open_reader(database) as reader:
        lines = drawn(reader.find("alpha-1"), width)
    assert "request alpha-1" in lines[0]
    assert "100 ms" in lines[0]
    rows = [next(line for line in lines if line.startswith(name)) for name in [*ROWS, "↳ scheduler.batch"]]
    assert [lines.index(row) for row in rows] == sorted(lines.index(row) for row in rows)
    bars = [[at for at, char in enumerate(row) if "▀" <= char <= "▟"] for row in rows]
    left, right = bars[0][0], bars[0][-1]
    assert bars[1][0] == left
    assert bars[4][-1] >= right - 1
    assert left + 0.25 * (right - left) < bars[4][0] < left + 0.35 * (right - left)
    text = " ".join(" ".join(lines).split())
    for detail in (
        "class realtime",
        "model toy",
        "waited slots",
        "members 1",
        "closed idle",
        "steps 12",
        "finish stop",
    ):
        assert all(word in text for word in detail.split())


def test_the_newest_is_the_default_and_a_unique_prefix_suffices(database: Path) -> None:
    with open_reader(database) as reader:
        traces = {span.request_id: span.trace_id for span in reader.recent(10)}
        assert list(traces) == ["alpha-2", "alpha-1"]
        for identifier in ("alpha-1", traces["alpha-1"], traces["alpha-1"][:12], traces["alpha-1"].upper()):
            assert len(reader.find(identifier)) == 6
        assert reader.last()[0].request_id == "alpha-2"
        with pytest.raises(InvalidRequest, match="alpha-1, alpha-2"):
            reader.find("alpha")
        for unknown in ("beta", "", "%", "alpha-1' OR 1=1"):
            with pytest.raises(NotFound):
                reader.find(unknown)
    assert "request alpha-2" in run("--database", str(database)).output
    assert "request alpha-2" in run("--last", "--database", str(database)).output
    assert "request alpha-1" in run("alpha-1", "--database", str(database)).output


def test_the_list_names_the_newest_first(database: Path) -> None:
    lines = run("--list", "--database", str(database)).output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["alpha-2", "alpha-1"]
    assert all("realtime" in line and "100 ms" in line and "stop" in line for line in lines[1:])


def test_one_thing_at_a_time(tmp_path: Path) -> None:
    assert isinstance(run("--last", "--list").exception, InvalidRequest)
    assert isinstance(run("--last", "r1").exception, InvalidRequest)
    assert isinstance(run("--database", str(tmp_path / "none.sqlite")).exception, NotFound)
    (tmp_path / "text").write_text("no database" * 200)
    assert isinstance(run("--database", str(tmp_path / "text")).exception, Unavailable)


def test_a_file_that_cannot_be_written_is_named(database: Path, tmp_path: Path) -> None:
    result = run("--json", str(tmp_path / "none" / "t.json"), "--database", str(database))
    assert isinstance(result.exception, InvalidRequest)
    assert "t.json" in str(result.exception)


def test_the_json_is_otlp_with_hex_ids(database: Path, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    result = run("alpha-1", "--json", str(target), "--database", str(database))
    assert result.exit_code == 0
    assert "6 spans" in result.output
    document = json.loads(target.read_text(encoding="utf-8"))
    with open_reader(database) as reader:
        stored = {span.span_id: span for span in reader.find("alpha-1")}
    services = set()
    for of_resource in document["resourceSpans"]:
        (service,) = [
            a["value"]["stringValue"] for a in of_resource["resource"]["attributes"] if a["key"] == "service.name"
        ]
        services.add(service)
        for of_scope in of_resource["scopeSpans"]:
            assert of_scope["scope"]["name"] == "headrace"
            for span in of_scope["spans"]:
                known = stored.pop(span["spanId"])
                assert (span["traceId"], span["parentSpanId"], span["name"]) == (
                    known.trace_id,
                    known.parent_id,
                    known.name,
                )
                assert tuple((link["traceId"], link["spanId"]) for link in span.get("links", ())) == known.links
                assert int(span["startTimeUnixNano"]) == known.start_ns
                assert isinstance(span["kind"], int)
    assert not stored
    assert services == {f"headrace-{name}" for name in ("gateway", "preprocess", "scheduler", "executor")}
    ParseDict(document, TracesData())  # every field has a name and a form that OTLP knows


def test_the_tree_takes_orphans_circles_and_depth() -> None:
    orphan, a, b = (
        made("orphan", 5, 6, parent_id="elsewhere"),
        made("a", 1, 2, parent_id="b"),
        made("b", 2, 3, parent_id="a"),
    )
    assert tree([orphan, a, b]) == [(orphan, 0)]
    chain = [made(str(n), n, 9_000, parent_id=str(n - 1)) for n in range(3_000)]
    assert [depth for _, depth in tree(chain)] == list(range(3_000))
    assert drawn(chain)[-1] == f"… and {3_000 - MAX_ROWS} spans more"


def test_names_from_callers_cannot_steer_the_terminal() -> None:
    hostile = made(
        "evil\x1b[2J",
        0,
        10,
        attributes={"headrace.request.id": "\x1b]0;title\x07[red]r[/red]", "headrace.tenant": "[/]\nnew"},
    )
    failed = made("gateway.failed", 0, 5, error=True, error_message="no \x9b31m room")
    text = "\n".join(drawn([hostile, failed], 160))
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert "[red]r[/red]" in text
    assert "no �31m room" in text


def test_events_are_named_and_counted() -> None:
    spans = [made("decode", 0, 10, events=("late_step", "displaced", "late_step", "evil\x1b[2J"))]
    text = "\n".join(drawn(spans))
    assert "late_step 2 times" in text
    assert "displaced" in text
    assert "\x1b" not in text


def test_odd_times_are_drawn() -> None:
    spans = [
        made("instant", 0, 0),
        made("late", 10**12, 10**12, linked=True),
        made("early", -(10**12), -5, linked=True),
    ]
    assert [line.split()[0] for line in drawn(spans)[3:]] == ["instant", "↳", "↳"]
    assert drawn([])[0] == "no spans"


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 µs"),
        (999_499, "999 µs"),
        (1_000_000, "1.00 ms"),
        (12_340_000, "12.3 ms"),
        (123_400_000, "123 ms"),
        (4_560_000_000, "4.56 s"),
    ],
)
def test_durations_have_three_digits(time_ns: int, text: str) -> None:
    assert duration(time_ns) == text


def test_an_empty_trace_is_a_document_too() -> None:
    assert json.loads(to_otlp_json([])) == {"resourceSpans": []}
