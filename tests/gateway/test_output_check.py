"""The check of answers while they are made: of a blocked window nothing is on the wire. A token is a byte."""

import sys
from dataclasses import dataclass

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from pydantic import ValidationError

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis import signals
from headrace.chassis.config import OutputCheckSettings
from headrace.core.errors import ConfigError, ScreenRejected, Unavailable
from headrace.core.request import FinishReason, Precision
from headrace.gateway.checked import Checked, Outcome
from headrace.gateway.generation import Known, Piece
from headrace.gateway.output_check import open_output_checks
from headrace.models.repository import Repository

SAFE = "0123456789abcdefghijklmnopqrstuvwxyz"
MODULE = """
import threading
from headrace.core.screening import Verdict

class Check:
    def judge(self, windows):
        if any("broken" in window for window in windows):
            raise RuntimeError("a program of somebody else's")
        if any("slow" in window for window in windows):
            threading.Event().wait(1.0)
        return [Verdict("harm" if "bomb" in window else "", 0.9, "words") for window in windows]

def load(repository, threads):
    return Check()
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that offers the check `words`."""
    (tmp_path / "words_check.py").write_text(MODULE)
    info = tmp_path / "words_check-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: words-check\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[headrace.output_checks]\nwords = words_check:load\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("words_check", None)


def settings(policy="block", **more):
    return {"output": {"policy": policy, "check": "words", "window_chars": 8, "stride_chars": 4, **more}}


@dataclass
class Says:
    """Sends each of the answers' texts in pieces of `size` tokens."""

    texts: list[str]
    size: int = 1

    async def __call__(self, run):
        for index, text in enumerate(self.texts):
            data = text.encode()
            for at in range(0, len(data), self.size):
                run.send(data[at : at + self.size], index)
            run.send(b"\0", index, FinishReason.STOP)


def told(messages):
    """The text on the wire, and that of the token ids."""
    pieces = [pb.GenerateResponse.FromString(message) for message in messages]
    return "".join(piece.text for piece in pieces), b"".join(piece.token_ids for piece in pieces)[::4].decode()


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("before", [0, 1, 7, 8, 20, 35])
async def test_nothing_of_a_blocked_window_is_on_the_wire(world, until, package, size, before):
    async with world(None, settings()) as w:
        w.executor.script = Says([SAFE[:before] + "bomb" + SAFE], size)
        messages, error = await w.on_the_wire(pb.GenerateRequest(model="bytes", text="hi"))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        info = ErrorInfo()
        packed = dict(error.trailing_metadata())["grpc-status-details-bin"]
        assert Status.FromString(packed).details[0].Unpack(info)
        assert (info.reason, info.metadata["category"]) == ("SCREEN_REJECTED", "harm")
        text, tokens = told(messages)
        said = SAFE[:before] + "bomb" + SAFE
        first_blocked = next(start for start in range(0, 99, 4) if "bomb" in said[start : start + 8])
        assert text == SAFE[: len(text)]
        assert tokens == SAFE[: len(tokens)]
        assert max(len(text), len(tokens)) <= first_blocked
        await w.idle()
        assert (await w.span()).attributes[signals.ERROR_TYPE] == "SCREEN_REJECTED"


@pytest.mark.parametrize("policy", ["block", "flag"])
async def test_what_passes_is_whole(world, package, policy):
    async with world(None, settings(policy)) as w:
        for length in (0, 1, 7, 8, 9, 12, 36):
            w.executor.script = Says([SAFE[:length], SAFE[: length // 2]])
            request = pb.GenerateRequest(model="bytes", text="hi")
            request.sampling.n = 2
            messages, error = await w.on_the_wire(request)
            assert error is None
            pieces = [pb.GenerateResponse.FromString(message) for message in messages]
            for index, text in enumerate(w.executor.script.texts):
                assert "".join(piece.text for piece in pieces if piece.index == index) == text
            assert not any(piece.HasField("screen") for piece in pieces)
            assert pieces[-1].usage.completion_tokens == length + length // 2 + 2


async def test_a_flagged_answer_says_so_at_its_end(world, package):
    async with world(None, settings("flag")) as w:
        w.executor.script = Says([SAFE + "bomb" + SAFE])
        messages, error = await w.on_the_wire(pb.GenerateRequest(model="bytes", text="hi"))
        assert error is None
        assert told(messages)[0] == SAFE + "bomb" + SAFE
        pieces = [pb.GenerateResponse.FromString(message) for message in messages]
        assert [piece.HasField("screen") for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert pieces[-1].screen.category == "harm"


async def test_tokens_behind_a_stop_string_s_beginning_are_held_too(world, package):
    """They are in a piece before their text is."""
    async with world(None, settings()) as w:
        w.executor.script = Says(["safe" * 2 + "bomb" + "safe" * 4])
        request = pb.GenerateRequest(model="bytes", text="hi")
        request.sampling.stop.append("bombastic")
        messages, error = await w.on_the_wire(request)
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "b" not in told(messages)[1]


@pytest.mark.parametrize("text", ["broken", "slow"])
async def test_without_a_verdict_the_settings_decide(world, package, text):
    for on_timeout in ("closed", "open"):
        async with world(None, settings(on_timeout=on_timeout, budget_ms=50)) as w:
            w.executor.script = Says([text])
            if on_timeout == "open":
                assert (await w.client.generate("bytes", "hi")).text == text
            else:
                with pytest.raises(Unavailable, match="could not be checked"):
                    await w.client.generate("bytes", "hi")


@pytest.mark.parametrize(
    ("text", "policy", "counted"),
    [
        (SAFE, "block", {"pass"}),
        (SAFE + "bomb", "flag", {"pass", "found"}),
        (SAFE + "bomb", "block", {"pass", "found"}),
        (SAFE + "slow", "flag", {"pass", "late"}),
        (SAFE + "broken", "flag", {"pass", "failed"}),
    ],
)
async def test_each_run_is_counted_and_what_does_not_pass_is_an_event(world, package, text, policy, counted):
    def sample(name, **labels):
        return w.metrics.registry.get_sample_value(f"headrace_output_check_{name}", {"policy": policy, **labels}) or 0

    async with world(None, settings(policy, budget_ms=200)) as w:
        w.executor.script = Says([text])
        await w.on_the_wire(pb.GenerateRequest(model="bytes", text="hi"))
        span = await w.span()
        runs = {verdict: sample("runs_total", verdict=verdict) for verdict in ("pass", "found", "late", "failed")}
        assert {verdict for verdict, count in runs.items() if count} == counted
        assert sample("seconds_count") == sum(runs.values())
        events = [event.attributes for event in span.events if event.name == signals.OUTPUT_CHECK]
        assert len(events) == sum(runs.values()) - runs["pass"]
        for event in events:
            (other,) = counted - {"pass"}
            found = other == "found"
            assert event[signals.SCREEN_VERDICT] == ("harm" if found else other)
            assert event[signals.SCREEN_POLICY] == policy
            assert event[signals.SCREEN_MS] > 0
            assert event[signals.SCREEN_WINDOWS] >= 1
            assert (event.get(signals.SCREEN_MODEL), event.get(signals.SCREEN_SCORE)) == (
                ("words", 0.9) if found else (None, None)
            )


async def test_a_partial_answer_is_checked_to_its_end(world, until, package, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_RESULTS__STORE", str(tmp_path / "results.db"))
    async with world(None, settings()) as w:
        w.scheduler.holding = True
        part = await w.client.generate("bytes", "hi", sla_total_ms=30)
        await until(lambda: w.scheduler.submissions)
        w.executor.script = Says([SAFE + "bomb" + SAFE])
        w.scheduler.place(w.scheduler.submissions[0].request_id)
        got = []
        with pytest.raises(ScreenRejected, match="harm"):
            await gather(w.client.attach_result(part.result.handle), got)
        assert SAFE.startswith("".join(got))


async def gather(pieces, texts):
    async for piece in pieces:
        texts.append(piece.text)


async def test_a_check_that_nobody_offers_is_named(package, tmp_path):
    named = OutputCheckSettings(policy="block", check="nobody")
    with pytest.raises(ConfigError, match=r"screen\.output\.check is 'nobody'; there are: words"):
        async with open_output_checks(named, Repository(tmp_path)):
            pass


def test_windows_overlap_or_touch():
    with pytest.raises(ValidationError, match="stride_chars is over window_chars"):
        OutputCheckSettings(window_chars=4, stride_chars=5)


async def test_what_another_gateway_has_sent_is_the_beginning_of_the_window(package, tmp_path):
    known = Known((b"",), ("0123456bo",), (FinishReason.NONE,), Precision.ANY, 9)
    for policy in ("block", "flag"):
        named = OutputCheckSettings(policy=policy, check="words", window_chars=8, stride_chars=4)
        async with open_output_checks(named, Repository(tmp_path)) as checks:
            runs: list[Checked] = []
            watch = checks.watch(1, 0, known, runs.append)
            rest = [Piece(0, "mb", b"", (), FinishReason.NONE), Piece(0, "s!", b"", (), FinishReason.STOP)]
            if policy == "block":
                with pytest.raises(ScreenRejected):
                    await watch.passed(rest)
            else:
                assert await watch.passed(rest) == rest
                assert watch.finding.category == "harm"
            assert [(run.outcome, run.policy) for run in runs] == [(Outcome.FOUND, policy)]
