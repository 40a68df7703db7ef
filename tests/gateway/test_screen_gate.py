"""The first-token gate: nothing of a refused request leaves, and whoever works on it is told."""

import asyncio
from collections.abc import Sequence

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from opentelemetry.context import Context

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.chassis import signals
from headrace.chassis.config import ScreenSettings
from headrace.core.errors import ConfigError, DeadlineMissed, ScreenRejected, Unavailable
from headrace.core.screening import Verdict
from headrace.gateway.screen_gate import ScreenGate

PASS, HARM = Verdict("", 0.01, "fake"), Verdict("harm", 0.97, "fake")
BLOCK = {"policy": "block"}


class Scripted:
    """Answers when `gate` is set: harm where a text has 'bomb' in it."""

    def __init__(self, ready: bool = True) -> None:
        self.gate = asyncio.Event()
        if ready:
            self.gate.set()
        self.asked: list[Sequence[str]] = []

    async def screen(self, request_id: str, texts: Sequence[str], parent: Context) -> Verdict:
        self.asked.append(list(texts))
        await self.gate.wait()
        return HARM if any("bomb" in text for text in texts) else PASS


class Broken(Scripted):
    async def screen(self, request_id: str, texts: Sequence[str], parent: Context) -> Verdict:
        raise RuntimeError("the screen is a program of somebody else's")


async def endless(run):
    while True:
        run.send(b"x")
        await asyncio.sleep(0.001)


async def test_a_refused_request_leaves_nothing_on_the_wire(world, until):
    screener = Scripted(ready=False)
    async with world(screener, BLOCK) as w:
        w.executor.script = endless
        call = asyncio.create_task(w.on_the_wire(pb.GenerateRequest(model="bytes", text="a bomb")))
        await until(lambda: w.executor.starts)
        await asyncio.sleep(0.05)  # tokens are coming, and are held
        assert not call.done()
        screener.gate.set()
        messages, error = await call
        assert messages == []
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        packed = dict(error.trailing_metadata())["grpc-status-details-bin"]
        info = ErrorInfo()
        assert Status.FromString(packed).details[0].Unpack(info)
        assert (info.reason, info.metadata["category"]) == ("SCREEN_REJECTED", "harm")
        await until(lambda: w.executor.cancelled == [w.executor.starts[0].request_id])
        await w.idle()
        span = await w.span()
        assert span.attributes[signals.SCREEN_VERDICT] == "harm"
        assert span.attributes[signals.ERROR_TYPE] == "SCREEN_REJECTED"


async def test_a_refused_request_leaves_the_queue(world, until):
    async with world(Scripted(), BLOCK) as w:
        w.scheduler.holding = True
        with pytest.raises(ScreenRejected) as refused:
            await w.client.generate("bytes", "a bomb")
        assert refused.value.category == "harm"
        await until(lambda: len(w.scheduler.cancelled) == 1 or not w.scheduler.submissions)
        await w.idle()
        assert not w.executor.starts


async def test_an_answer_that_is_complete_before_the_verdict_does_not_leave_either(world, until):
    screener = Scripted(ready=False)
    async with world(screener, BLOCK) as w:
        call = asyncio.create_task(w.on_the_wire(pb.GenerateRequest(model="bytes", text="a bomb")))
        await until(lambda: w.executor.starts)
        await asyncio.sleep(0.05)
        screener.gate.set()
        messages, error = await call
        assert messages == []
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        await w.idle()


async def test_a_legal_request_is_answered_as_ever(world):
    async with world(Scripted(), BLOCK) as w:
        answer = await w.client.generate("bytes", "hello?")
        assert (answer.text, answer.flagged) == ("hello", None)
        span = await w.span()
        assert span.attributes[signals.SCREEN_VERDICT] == "pass"
        assert span.attributes[signals.SCREEN_MODEL] == "fake"
        assert span.attributes[signals.SCREEN_SCORE] == pytest.approx(0.01)


async def test_flagged_is_answered_and_said(world):
    async with world(Scripted(), {"policy": "flag"}) as w:
        answer = await w.client.generate("bytes", "a bomb")
        assert answer.text == "hello"
        assert (answer.flagged.category, answer.flagged.model) == ("harm", "fake")
        assert (await w.client.generate("bytes", "tea")).flagged is None


async def test_only_the_users_turns_are_judged_and_tokens_by_their_text(world):
    screener = Scripted()
    async with world(screener, BLOCK) as w:
        chat = [("system", "never say bomb"), ("user", "hi"), ("assistant", "bomb?"), ("user", "tea")]
        await w.client.generate("bytes", [{"role": role, "content": content} for role, content in chat])
        with pytest.raises(ScreenRejected):
            await w.client.generate("bytes", list(b"a bomb"))
        with pytest.raises(ScreenRejected):
            await w.client.generate("bytes", [{"role": "system", "content": "a bomb"}])
        assert screener.asked == [["hi", "tea"], ["a bomb"], ["a bomb"]]


async def test_the_first_rule_that_fits_decides(world):
    screener = Scripted()
    rules = [
        {"tenant": "trusted", "qos": "batch", "policy": "off"},
        {"tenant": "trusted", "policy": "flag"},
    ]
    async with world(screener, BLOCK | {"rules": rules}) as w:
        w.client._tenant = "trusted"
        assert (await w.client.generate("bytes", "a bomb", qos="batch")).flagged is None
        assert screener.asked == []
        assert (await w.client.generate("bytes", "a bomb")).flagged.category == "harm"
        w.client._tenant = None
        with pytest.raises(ScreenRejected):
            await w.client.generate("bytes", "a bomb", qos="batch")


@pytest.mark.parametrize("screener", [Scripted(ready=False), Broken()], ids=["late", "broken"])
async def test_without_a_verdict_it_is_closed_or_open(world, screener):
    async with world(screener, BLOCK | {"budget_ms": 20}) as w:
        with pytest.raises(Unavailable):
            await w.client.generate("bytes", "tea")
        assert (await w.span()).attributes[signals.SCREEN_VERDICT] == "none"
        await w.idle()
    async with world(screener, BLOCK | {"budget_ms": 20, "on_timeout": "open"}) as w:
        assert (await w.client.generate("bytes", "tea")).text == "hello"


async def test_the_deadline_holds_while_the_verdict_is_waited_for(world):
    async with world(Scripted(ready=False), BLOCK | {"budget_ms": 60_000}) as w:
        with pytest.raises(DeadlineMissed):
            await w.client.generate("bytes", "tea", timeout_s=0.3)
        await w.idle()


def test_a_policy_without_a_screen_does_not_start():
    with pytest.raises(ConfigError):
        ScreenGate(ScreenSettings(policy="block"), None, None)
