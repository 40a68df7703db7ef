"""The span gateway.generate: what one call was, how it went, and why it failed."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import Tracer

from headrace.chassis import signals
from headrace.core.errors import HeadraceError
from headrace.core.screening import ScreenPolicy, Verdict
from headrace.gateway.cache.answers import Lookup
from headrace.gateway.call_span import CallSpan
from headrace.gateway.checked import Checked, Outcome
from headrace.gateway.generation import Generation, Prompt, Wish
from headrace.gateway.meters import GatewayMeters
from headrace.gateway.relay import Relay
from headrace.gateway.sla import Sla

MAX_RECORDED_CHARS = 4_096
MAX_RECORDED_TURNS = 64


class RequestSpan(CallSpan):
    """Records what becomes known, when it does."""

    def __init__(
        self,
        tracer: Tracer,
        meters: GatewayMeters,
        metadata: Iterable[tuple[str, str | bytes]],
        record_prompt: bool,
    ) -> None:
        super().__init__(tracer, meters, signals.GATEWAY_GENERATE, metadata)
        self._record_prompt = record_prompt
        self._began = time.perf_counter()
        self._finished = False
        self._first = True
        self._relay: Relay | None = None
        self._deadline: float | None = None

    def decoded(self, wish: Wish, tenant: str, deadline: float | None) -> None:
        self._deadline = deadline
        self._meter.decoded(wish.model.name, wish.qos)
        if wish.sampling.constraint is not None:
            self._span.set_attribute(signals.CONSTRAINT, wish.sampling.constraint.kind.value)
        self._span.set_attributes(
            {
                signals.GENAI_OPERATION: _operation(wish.prompt),
                signals.GENAI_MODEL: wish.model.name,
                signals.GENAI_TEMPERATURE: wish.sampling.temperature,
                signals.QOS_CLASS: wish.qos.name.lower(),
                signals.TENANT: tenant,
            }
        )

        if self._record_prompt and (prompt := _recorded(wish.prompt)):
            self._span.set_attribute(signals.GENAI_INPUT, prompt)

    def screened(self, policy: ScreenPolicy, verdict: Verdict | None, took_s: float) -> None:
        """What the screen said, and how long it took; None for no verdict."""
        self._meter.screened(policy, verdict, took_s)
        found = "none" if verdict is None else verdict.category or "pass"
        attributes: dict[str, str | float] = {
            signals.SCREEN_POLICY: policy.value,
            signals.SCREEN_VERDICT: found,
            signals.SCREEN_MS: took_s * 1000,
        }
        if verdict is not None:
            attributes |= {signals.SCREEN_SCORE: verdict.score, signals.SCREEN_MODEL: verdict.model}
        self._span.set_attributes(attributes)

    def held_by_screen(self, held_s: float) -> None:
        """Tokens were there before the verdict."""
        self._meter.held_by_screen(held_s)
        self._span.set_attribute(signals.SCREEN_HELD_MS, held_s * 1000)

    def checked(self, checked: Checked) -> None:
        """The output check has run. A run that let everything pass is only counted: there is one every few tokens."""
        self._meter.checked(checked)
        if checked.outcome is Outcome.PASS:
            return
        attributes: dict[str, str | float] = {
            signals.SCREEN_POLICY: checked.policy.value,
            signals.SCREEN_VERDICT: checked.outcome.value,
            signals.SCREEN_MS: checked.took_s * 1000,
            signals.SCREEN_WINDOWS: checked.num_windows,
        }
        if (verdict := checked.verdict) is not None:
            attributes |= {
                signals.SCREEN_VERDICT: verdict.category,
                signals.SCREEN_SCORE: verdict.score,
                signals.SCREEN_MODEL: verdict.model,
            }
        self._span.add_event(signals.OUTPUT_CHECK, attributes)

    def submitted(self, relay: Relay, generation: Generation) -> None:
        self._relay = relay
        self._meter.prepared(len(generation.token_ids))
        self._span.set_attributes(
            {
                signals.GENAI_MAX_TOKENS: generation.sampling.max_tokens,
                signals.GENAI_INPUT_TOKENS: len(generation.token_ids),
                signals.PROMPT_TOKENS: len(generation.token_ids),
            }
        )

    def lost(self, error: HeadraceError) -> None:
        """The executor was lost; the request goes on elsewhere with the tokens that it has."""
        relay = self._relay
        self._meter.lost(error)
        self._span.add_event(
            signals.FAILOVER,
            {
                signals.ERROR_TYPE: error.reason,
                signals.FAILOVER_REASON: error.message,
                signals.GENAI_OUTPUT_TOKENS: relay.num_tokens if relay else 0,
            },
        )

    def promised(self, sla: Sla) -> None:
        """0 where nothing is."""
        self._meter.promised()
        self._span.set_attributes({signals.SLA_FIRST_TOKEN_MS: sla.first_token_ms, signals.SLA_TOTAL_MS: sla.total_ms})

    def sla_missed(self, promise: str, outcome: str, handle: str = "") -> None:
        """Which, and what became of it; the handle of what goes on after the call."""
        self._meter.sla_missed(promise, outcome)
        self._span.set_attributes({signals.SLA_MISSED: promise, signals.SLA_OUTCOME: outcome})
        if handle:
            self._span.set_attribute(signals.RESULT_HANDLE, handle)

    def kept(self, handle: str) -> None:
        """It goes on without its call from the start; a short one may have ended by now."""
        if self._span.is_recording():
            self._span.set_attribute(signals.RESULT_HANDLE, handle)

    def looked_up(self, lookup: Lookup) -> None:
        """Whether the answer was there already."""
        self._meter.looked_up(lookup.value)
        self._span.set_attribute(signals.CACHE, lookup.value)

    def resumed(self, handle: str, num_tokens: int) -> None:
        """Another gateway began the answer, and made so many tokens of it."""
        self._first = False
        self._meter.resumed(num_tokens)
        self._span.set_attribute(signals.RESULT_HANDLE, handle)
        self._span.add_event(signals.TAKEOVER, {signals.GENAI_OUTPUT_TOKENS: num_tokens})

    def progressed(self) -> None:
        """Pieces are about to go out."""
        self._meter.progressed(self._relay.num_tokens if self._relay else 0)
        if self._first:
            self._first = False
            self._span.set_attribute(signals.TTFT_MS, (time.perf_counter() - self._began) * 1000)

    def finished(self) -> None:
        """All of the answer has been handed over."""
        self._finished = True

    def end(self, error: BaseException | None) -> None:
        if self._relay is not None:
            self._span.set_attribute(signals.GENAI_OUTPUT_TOKENS, self._relay.num_tokens)
            self._span.set_attribute(
                signals.GENAI_FINISH_REASONS,
                [answer.finish.name.lower() for answer in self._relay.answers if answer.finish],
            )
        if not self._finished:
            self.failed(error, self._deadline, self._relay.num_tokens if self._relay else 0)
        self._end()


@contextmanager
def request_span(
    tracer: Tracer,
    meters: GatewayMeters,
    metadata: Iterable[tuple[str, str | bytes]],
    *,
    record_prompt: bool = False,
) -> Iterator[RequestSpan]:
    """A span from call to end, however it ends; a block that ends without `finished` counts as broken off."""
    span = RequestSpan(tracer, meters, metadata, record_prompt)
    try:
        yield span
    except BaseException as error:
        span.end(error)
        raise
    span.end(None)


def _recorded(prompt: Prompt) -> str:
    """As the GenAI conventions have it, JSON of messages; '' for token ids. Long texts are cut."""
    if isinstance(prompt, str):
        turns = [("user", prompt)]
    elif isinstance(prompt, tuple):
        turns = [(turn.role, turn.content) for turn in prompt]
    else:
        return ""
    parts = [
        {"role": role, "parts": [{"type": "text", "content": content[:MAX_RECORDED_CHARS]}]} for role, content in turns
    ]
    return json.dumps(parts[:MAX_RECORDED_TURNS], ensure_ascii=False)


def _operation(prompt: Prompt) -> str:
    return "chat" if isinstance(prompt, tuple) else "text_completion"
