"""What `headrace top` shows of figures, what its keys do, and the program itself in a terminal."""

import asyncio
import fcntl
import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console, RenderableType

from headrace.cli.figures import Figures, parse
from headrace.cli.top_view import Looking, Page, Sort, press, view
from headrace.models import reference

BOUND_S = 60
SCHEDULER = {
    'headrace_queue_requests{class="batch"}': 41,
    'headrace_batches_total{reason="full"}': 20,
    'headrace_batches_total{reason="idle"}': 5,
    'headrace_sla_missed_total{class="normal"}': 3,
    'headrace_screen_verdicts_total{verdict="found"}': 2,
}


def _device(busy_s: float, slots: int, held: int) -> dict[str, float]:
    return {
        "headrace_slots": 64,
        "headrace_slots_in_use": slots,
        "headrace_step_seconds_sum": busy_s,
        'headrace_kv_bytes{state="total"}': 24,
        'headrace_kv_bytes{state="held"}': held,
        'headrace_kv_bytes{state="cached"}': 6,
        'headrace_kv_bytes{state="mapped"}': held + 6,
    }


def _figures(pages: Mapping[str, Mapping[str, float]]) -> Figures:
    """Ten seconds in which every counter grew from nothing."""
    texts = {at: "".join(f"{name} {value}\n" for name, value in page.items()) for at, page in pages.items()}
    return Figures({}, parse(texts), 10)


def _drawn(shown: RenderableType) -> list[str]:
    out = io.StringIO()
    Console(width=140, file=out).print(shown)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


def test_classes_batches_and_promises_are_shown() -> None:
    lines = _drawn(view(_figures({"s:1": SCHEDULER, "e:1": _device(8, 30, 12)})))
    rows = {line.split()[0]: line.split() for line in lines}
    assert rows["realtime"][1] == "0"
    assert rows["batch"][1] == "41"
    assert "batches/s 2.5" in rows["batches/s"][0] + " " + rows["batches/s"][1]
    assert any("closed: full 2.0, idle 0.5" in line for line in lines)
    assert any("broken 3" in line and "found 2" in line for line in lines)


def test_a_device_s_memory_is_a_map_of_what_is_held_cached_and_free() -> None:
    (row,) = (line for line in _drawn(view(_figures({"e:1": _device(8, 30, 12)}))) if line.split()[0] == "e:1")
    assert "30 of 64" in row
    assert "80%" in row
    assert "█" * 12 + "▓" * 6 + "·" * 6 in row


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (Sort.ADDRESS, ["e:1", "e:2", "e:3"]),
        (Sort.BUSY, ["e:3", "e:1", "e:2"]),
        (Sort.SLOTS, ["e:2", "e:3", "e:1"]),
        (Sort.KV, ["e:1", "e:2", "e:3"]),
    ],
)
def test_devices_are_sorted(sort: Sort, order: list[str]) -> None:
    figures = _figures({"e:1": _device(5, 10, 12), "e:2": _device(1, 60, 9), "e:3": _device(9, 30, 2)})
    names = [line.split()[0] for line in _drawn(view(figures, sort))]
    assert [name for name in names if name.startswith("e:")] == order


def test_keys_lead_to_a_request_and_back() -> None:
    looking = press(press(Looking(), "r"), "3")
    assert (looking.page, looking.chosen) == (Page.REQUEST, 2)
    assert press(looking, "5").chosen == 4
    assert [looking := press(looking, "\x1b") for _ in range(3)][-1].page is Page.SUITE
    assert press(Looking(), "7") == press(Looking(), "?") == press(Looking(), "\x1b") == Looking()
    assert press(Looking(), "q").left


def test_s_goes_round_all_orders() -> None:
    looking, seen = Looking(), []
    for _ in Sort:
        seen.append(looking.sort)
        looking = press(looking, "s")
    assert seen == list(Sort)
    assert looking.sort is Sort.ADDRESS


async def test_in_a_terminal_it_draws_sorts_shows_requests_and_leaves(watching: Any) -> None:
    main, sub = pty.openpty()
    fcntl.ioctl(sub, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    before = termios.tcgetattr(sub)
    async with watching() as watched:
        await watched.client.generate(reference.NAME, "seen", max_tokens=2, ignore_eos=True)
        command = (
            sys.executable,
            "-m",
            "headrace.cli.main",
            "top",
            "--metrics-port",
            str(watched.port),
            "--every",
            "0.5",
        )
        environment = os.environ | {"TERM": "xterm", "HEADRACE_MODELS__HOME": "/nowhere"}
        process = await asyncio.create_subprocess_exec(*command, stdin=sub, stdout=sub, stderr=sub, env=environment)
        try:
            async with asyncio.timeout(BOUND_S):
                await _until(main, "realtime")
                os.write(main, b"s")
                await _until(main, "busy ↓")
                os.write(main, b"r")
                await _until(main, "no spans at")  # another home: none are collected there
                os.write(main, b"q")
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert termios.tcgetattr(sub) == before
    os.close(sub)
    os.close(main)


async def _until(terminal: int, text: str) -> None:
    """Reads what is drawn until this has been."""
    drawn = ""
    while text not in drawn:
        drawn += (await asyncio.to_thread(os.read, terminal, 65_536)).decode(errors="replace")
