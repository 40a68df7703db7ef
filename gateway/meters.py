"""What the gateway records of its calls: a `CallMeter` each, told by the call's span. Gauges are read when scraped."""

import time
from collections.abc import Callable

from opentelemetry.trace import SpanContext

from headrace.chassis.config import GatewaySettings
from headrace.chassis.metric_table import gateway as table
from headrace.chassis.metrics import Metrics, exemplar
from headrace.core.errors import DeadlineMissed, HeadraceError, Overloaded, Unavailable
from headrace.core.request import Precision, QosClass
from headrace.core.screening import ScreenPolicy, Verdict
from headrace.gateway.admission import Admission
from headrace.gateway.checked import Checked

UNKNOWN = "unknown"
"""The class and model of a call that was refused before they were read."""


class GatewayMeters:
    """The gateway's metrics; label values are looked up once a call, not with each piece."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.requests = metrics.counter(table.REQUESTS)
        self.request_seconds = metrics.histogram(table.REQUEST_SECONDS)
        self.ttft_seconds = metrics.histogram(table.TTFT_SECONDS)
        self.inter_token_seconds = metrics.histogram(table.INTER_TOKEN_SECONDS)
        self.input_tokens = metrics.counter(table.INPUT_TOKENS)
        self.output_tokens = metrics.counter(table.OUTPUT_TOKENS)
        self.deadline_missed = metrics.counter(table.DEADLINE_MISSED)
        self.sla_promised = metrics.counter(table.SLA_PROMISED)
        self.sla_missed = metrics.counter(table.SLA_MISSED)
        self.failovers = metrics.counter(table.FAILOVERS)
        self.cache_lookups = metrics.counter(table.CACHE_LOOKUPS)
        self.refusals = metrics.counter(table.REFUSALS)
        self.precision_served = metrics.counter(table.PRECISION_SERVED)
        self.constraints = metrics.counter(table.CONSTRAINTS)
        self.constraint_seconds = metrics.histogram(table.CONSTRAINT_CHECK_SECONDS)
        self.screen_verdicts = metrics.counter(table.SCREEN_VERDICTS)
        self.screen_seconds = metrics.histogram(table.SCREEN_SECONDS)
        self.screen_held_seconds = metrics.histogram(table.SCREEN_HELD_SECONDS)
        self.output_check_runs = metrics.counter(table.OUTPUT_CHECK_RUNS)
        self.output_check_seconds = metrics.histogram(table.OUTPUT_CHECK_SECONDS)

    def call(self, operation: str, context: SpanContext) -> "CallMeter":
        """`operation` is the span's name."""
        return CallMeter(self, operation.rpartition(".")[2], context)

    def watch(
        self,
        settings: GatewaySettings,
        admission: Admission,
        num_waiting: Callable[[], int],
        num_running: Callable[[], int],
        num_unread: Callable[[], int],
    ) -> None:
        """Reads what is in use with each scrape."""
        limits = {
            "requests": settings.max_requests,
            "tokens": settings.max_queued_tokens,
            "bytes": settings.max_queued_bytes,
        }
        in_use, limit = self._metrics.gauge(table.PERMITS_IN_USE), self._metrics.gauge(table.PERMITS_LIMIT)
        waiting, running = self._metrics.gauge(table.GATEWAY_WAITING), self._metrics.gauge(table.GATEWAY_RUNNING)
        unread = self._metrics.gauge(table.UNREAD_FRAMES)
        for unit, bound in limits.items():
            limit.labels(unit).set(bound)

        def refresh() -> None:
            in_use.labels("requests").set(admission.requests)
            in_use.labels("tokens").set(admission.tokens)
            in_use.labels("bytes").set(admission.num_bytes)
            waiting.set(num_waiting())
            running.set(num_running())
            unread.set(num_unread())

        self._metrics.before_scrape(refresh)


class CallMeter:
    """One call, from its arrival to its end."""

    def __init__(self, meters: GatewayMeters, operation: str, context: SpanContext) -> None:
        self._meters = meters
        self._operation = operation
        self._exemplar = exemplar(context)
        self._began = self._last = time.perf_counter()
        self._class = self._model = UNKNOWN
        self._inter_token = meters.inter_token_seconds
        self._first = True
        self._num_tokens = 0
        self._outcome = "ok"

    def decoded(self, model: str, qos: QosClass) -> None:
        self._model, self._class = model, qos.name.lower()
        self._inter_token = self._meters.inter_token_seconds.labels(self._class)

    def prepared(self, num_tokens: int) -> None:
        self._meters.input_tokens.labels(self._class, self._model).inc(num_tokens)

    def placed(self, precision: Precision) -> None:
        self._meters.precision_served.labels(precision.name.lower()).inc()

    def resumed(self, num_tokens: int) -> None:
        """Another gateway has counted so many tokens, and the first of all."""
        self._first, self._num_tokens, self._last = False, num_tokens, time.perf_counter()

    def progressed(self, num_tokens: int) -> None:
        """Pieces go out; so many tokens of the answers have been handed over with them."""
        now = time.perf_counter()
        if self._first:
            self._first = False
            self._meters.ttft_seconds.labels(self._class).observe(now - self._began, self._exemplar)
        elif num_tokens > self._num_tokens:
            self._inter_token.observe(now - self._last, self._exemplar)
        if num_tokens > self._num_tokens:
            self._meters.output_tokens.labels(self._class, self._model).inc(num_tokens - self._num_tokens)
            self._num_tokens = num_tokens
        self._last = now

    def screened(self, policy: ScreenPolicy, verdict: Verdict | None, took_s: float) -> None:
        found = "none" if verdict is None else "found" if verdict.category else "pass"
        self._meters.screen_verdicts.labels(policy.value, found).inc()
        self._meters.screen_seconds.observe(took_s, self._exemplar)

    def held_by_screen(self, held_s: float) -> None:
        self._meters.screen_held_seconds.observe(held_s, self._exemplar)

    def checked(self, checked: Checked) -> None:
        self._meters.output_check_runs.labels(checked.policy.value, checked.outcome.value).inc()
        self._meters.output_check_seconds.labels(checked.policy.value).observe(checked.took_s, self._exemplar)

    def promised(self) -> None:
        self._meters.sla_promised.labels(self._class).inc()

    def sla_missed(self, promise: str, outcome: str) -> None:
        self._meters.sla_missed.labels(self._class, promise, outcome).inc()

    def looked_up(self, lookup: str) -> None:
        self._meters.cache_lookups.labels(lookup).inc()

    def lost(self, error: HeadraceError) -> None:
        self._meters.failovers.labels(error.reason).inc()

    def failed(self, error: HeadraceError) -> None:
        self._outcome = error.reason
        if isinstance(error, DeadlineMissed):
            when = "after" if self._num_tokens else "before_first_token"
            self._meters.deadline_missed.labels(self._class, when).inc()
        elif isinstance(error, Overloaded | Unavailable):
            self._meters.refusals.labels(self._class, error.reason).inc()

    def ended(self) -> None:
        took_s = time.perf_counter() - self._began
        self._meters.requests.labels(self._operation, self._class, self._model, self._outcome).inc()
        self._meters.request_seconds.labels(self._operation, self._class).observe(took_s, self._exemplar)
