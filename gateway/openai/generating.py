"""Generations: the gateway's own Generate for each prompt, all at once, and their answers as they come or whole."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from headrace.api.gateway.v1 import gateway_pb2
from headrace.chassis.config import SlaDefault, SlaSettings
from headrace.core.request import Precision, QosClass
from headrace.gateway.openai.exchange import Exchange
from headrace.gateway.openai.form import Answer, AskedGeneration
from headrace.gateway.openai.headers import CACHE, Call
from headrace.gateway.servicer import GatewayService

Piece = gateway_pb2.GenerateResponse


class Generating:
    """The gateway's parts as generations use them."""

    def __init__(self, core: GatewayService, sla: SlaSettings) -> None:
        self._core = core
        self._sla = sla

    async def answer(self, wanted: AskedGeneration, call: Call, exchange: Exchange) -> None:
        """Whole, or as events. Raises what fails one of its prompts."""
        outcome = _Outcome(wanted, exchange.told)
        if not wanted.stream:
            answers = [Answer() for _ in range(len(wanted.requests) * wanted.num_answers)]

            async def gather(index: int, piece: Piece) -> None:
                outcome.note(piece)
                answers[index].add(piece)

            await self._generate(wanted.requests, wanted.num_answers, call, gather)
            choices = [wanted.form.choice(index, answer) for index, answer in enumerate(answers)]
            await exchange.reply(outcome.head(wanted.form.whole) | {"choices": choices, "usage": outcome.usage()})
            return

        offsets: dict[int, int] = {}
        sending = asyncio.Lock()

        async def send(index: int, piece: Piece) -> None:
            outcome.note(piece)
            if not (piece.text or piece.logprobs or piece.finish_reason):
                return  # an unfinished character
            delta = wanted.form.delta(index, piece, index in offsets, offsets.get(index, 0))
            offsets[index] = offsets.get(index, 0) + len(piece.text)
            usage = {"usage": None} if wanted.include_usage else {}
            async with sending:
                await exchange.event(outcome.head(wanted.form.part) | {"choices": [delta]} | usage)

        await self._generate(wanted.requests, wanted.num_answers, call, send)
        if wanted.include_usage:
            await exchange.event(outcome.head(wanted.form.part) | {"choices": [], "usage": outcome.usage()})
        await exchange.end()

    async def _generate(
        self,
        requests: Sequence[gateway_pb2.GenerateRequest],
        num_answers: int,
        call: Call,
        take: Callable[[int, Piece], Awaitable[None]],
    ) -> None:
        """`take` gets each piece with the number of its answer, the first prompt's first."""

        async def one(place: int) -> None:
            async with aclosing(self._core.Generate(promised(requests[place], self._sla), call, call.caller)) as pieces:
                async for piece in pieces:
                    await take(place * num_answers + piece.index, piece)

        if len(requests) == 1:
            await one(0)
            return
        async with asyncio.TaskGroup() as tasks:
            for place in range(len(requests)):
                tasks.create_task(one(place))


def promised(request: gateway_pb2.GenerateRequest, sla: SlaSettings) -> gateway_pb2.GenerateRequest:
    """Where its class has an SLA, a miss is noted and the answer goes on: this door has no partial answers."""
    default: SlaDefault = getattr(sla, QosClass(request.qos_class or QosClass.NORMAL).name.lower())
    if default.first_token_ms or default.total_ms:
        request.sla.on_miss = gateway_pb2.ON_MISS_CONTINUE
    return request


class _Outcome:
    """What all objects of an answer say alike, and what it took."""

    def __init__(self, wanted: AskedGeneration, told: dict[str, str]) -> None:
        self._told = told
        self._head = {
            "id": wanted.form.id_prefix + wanted.requests[0].request_id,
            "created": int(time.time()),
            "model": wanted.requests[0].model,
            "system_fingerprint": None,
        }
        self._digest = wanted.digest
        self._prompt_tokens = self._completion_tokens = self._cached_tokens = 0

    def note(self, piece: Piece) -> None:
        if piece.from_cache:
            self._told[CACHE] = "hit"
        if piece.precision:
            # with the seed, what an answer depends on: the model and the precision that served
            precision = Precision.known(piece.precision).name.lower()
            self._head["system_fingerprint"] = f"{self._digest[:12]}-{precision}"
        if piece.HasField("usage"):
            self._prompt_tokens += piece.usage.prompt_tokens
            self._completion_tokens += piece.usage.completion_tokens
            self._cached_tokens += piece.usage.cached_prompt_tokens

    def head(self, kind: str) -> dict[str, Any]:
        return self._head | {"object": kind}

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }
