"""The driver's side of the pipe: JSON lines in, JSON lines out, one answer a command.

First line out: {"ready": {...}}, what runs with which versions and settings. Then for each command in
  {"cmd": "saturate", "prompts", "num_streams", "max_tokens", "warm_s", "window_s"}
  {"cmd": "single", "prompts", "max_tokens"}
  {"cmd": "open", "arrivals", "window_s"}: classes count where the peer has any
one line out: {"result": {...}} or {"error": "..."}. End of input ends the driver.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, TextIO

from headrace.benchmarks.closed_loop import Stream, closed_loop, one_by_one
from headrace.benchmarks.open_loop import Arrival, open_loop

Options = Mapping[str, Any]
OpenPeer = Callable[[Options], AbstractAsyncContextManager[Stream]]


def main(open_peer: OpenPeer, packages: tuple[str, ...]) -> None:
    """Runs a driver whose options are the JSON object in its first argument."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print on standard output: that goes to the log
    options = json.loads(sys.argv[1])
    asyncio.run(_serve(open_peer, options, packages, answers))


async def _serve(open_peer: OpenPeer, options: Options, packages: tuple[str, ...], answers: TextIO) -> None:
    async with open_peer(options) as stream:
        _answer(answers, {"ready": {"versions": {name: version(name) for name in packages}, "options": options}})
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                answer: dict[str, Any] = {"result": await _run(stream, json.loads(line))}
            except Exception as error:  # the other side decides what a failed measurement means
                answer = {"error": f"{type(error).__name__}: {error}"}
            _answer(answers, answer)


def _answer(answers: TextIO, answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


async def _run(stream: Stream, command: Mapping[str, Any]) -> dict[str, Any]:
    match command["cmd"]:
        case "saturate":
            keys = ("num_streams", "max_tokens", "warm_s", "window_s")
            window = await closed_loop(stream, command["prompts"], **{key: command[key] for key in keys})
            return asdict(window)
        case "single":
            replies = await one_by_one(stream, command["prompts"], command["max_tokens"])
            return {"replies": [asdict(reply) for reply in replies]}
        case "open":
            arrivals = [Arrival(**arrival) for arrival in command["arrivals"]]
            outcomes = await open_loop(stream, arrivals, command["window_s"])
            return {"outcomes": [asdict(outcome) for outcome in outcomes]}
        case other:
            raise ValueError(f"no command {other!r}")
