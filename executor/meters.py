"""What an executor records: each step as it ends, from the worker's thread; what it holds when scraped."""

from collections.abc import Callable
from pathlib import Path

from headrace.chassis.metric_table import device as table
from headrace.chassis.metric_table.metric import SIZES
from headrace.chassis.metrics import Metrics, Total
from headrace.executor.engines.protocol import EngineSpec
from headrace.executor.event_wait import Lateness, OverdueWait
from headrace.executor.experts.counts import ExpertCounts
from headrace.executor.step_reading import StepReading
from headrace.executor.usual_steps import UsualSteps
from headrace.executor.worker import WorkerStatus

PEAK_TOKENS = 64
"""A step of fewer tokens does not show how fast the device computes."""


class StepMeters:
    """Steps of either kind of executor. A step reads `weight_bytes`, and `kv_token_bytes` for each token of context."""

    def __init__(self, metrics: Metrics, weight_bytes: int, kv_token_bytes: float = 0.0) -> None:
        self._seconds = metrics.histogram(table.STEP_SECONDS)
        self._rows = metrics.histogram(table.STEP_ROWS)
        tokens, read = metrics.counter(table.STEP_TOKENS), metrics.counter(table.MEMORY_READ_BYTES)
        kinds = ("decode", "guess", "prefill", "padding")
        self._decode, self._guess, self._prefill, self._padding = (tokens.labels(kind) for kind in kinds)
        self._weights, self._kv = read.labels("weights"), read.labels("kv")
        self._peak = metrics.gauge(table.PEAK_TOKENS_PER_SECOND)
        self._fastest = 0.0
        self._weight_bytes = weight_bytes
        self._kv_token_bytes = kv_token_bytes

    def stepped(self, reading: StepReading) -> None:
        sample = reading.sample
        self._seconds.observe(sample.duration_s)
        self._rows.observe(reading.num_rows)
        self._decode.inc(sample.num_decodes - reading.num_guesses - reading.num_dummies)
        self._guess.inc(reading.num_guesses)
        self._prefill.inc(sample.prefill_tokens - reading.padding_tokens)
        self._padding.inc(reading.padding_tokens + reading.num_dummies)
        self._weights.inc(self._weight_bytes)
        self._kv.inc(reading.context_tokens * self._kv_token_bytes)
        num_tokens = sample.num_decodes + sample.prefill_tokens
        speed = num_tokens / sample.duration_s if sample.duration_s > 0 else 0.0
        if num_tokens >= PEAK_TOKENS and speed > self._fastest:
            self._fastest = speed
            self._peak.set(speed)


class DecoderMeters(StepMeters):
    """Those of a decoder's executor beside its steps: lateness, memory, prefix cache, who runs."""

    def __init__(self, metrics: Metrics, spec: EngineSpec, weight_bytes: int) -> None:
        super().__init__(metrics, weight_bytes, spec.kv_bytes_per_block / spec.block_tokens)
        self._metrics = metrics
        self._spec = spec
        self._late = metrics.counter(table.LATE_STEPS)
        overdue = metrics.counter(table.OVERDUE_WAITS)
        self._overdue = {lateness: overdue.labels(lateness.value) for lateness in Lateness}
        seconds, tokens = metrics.counter(table.DECODE_STEP_SECONDS), metrics.counter(table.DECODE_STEP_TOKENS)
        self._usual_seconds, self._usual = metrics.counter(table.USUAL_STEP_SECONDS), UsualSteps()
        self._decode_steps = {edge: (seconds.labels(f"{edge:.0f}"), tokens.labels(f"{edge:.0f}")) for edge in SIZES}

    def stepped(self, reading: StepReading) -> None:
        super().stepped(reading)
        sample = reading.sample
        if not sample.prefill_tokens:
            edge = next((edge for edge in SIZES if edge >= sample.num_decodes), SIZES[-1])
            seconds, tokens = self._decode_steps[edge]
            seconds.inc(sample.duration_s)
            tokens.inc(sample.num_decodes)
            usual_s = self._usual.observe(sample.num_decodes, reading.context_tokens, sample.duration_s)
            self._usual_seconds.inc(usual_s)
        if reading.late:
            self._late.inc()

    def overdue(self, wait: OverdueWait) -> None:
        self._overdue[wait.lateness].inc()

    def serves(self, model: str) -> None:
        """Said once: what is loaded, and on what it runs."""
        served = self._metrics.gauge(table.SERVED)
        served.labels(model, self._spec.precision.name.lower(), self._spec.architecture).set(1)

    def watch(self, num_slots: int, status: Callable[[], WorkerStatus], num_paused: Callable[[], int]) -> None:
        """Reads what is held with each scrape."""
        metrics, spec = self._metrics, self._spec
        in_use, running = metrics.gauge(table.SLOTS_IN_USE), metrics.gauge(table.RUNNING)
        paused, kv = metrics.gauge(table.PAUSED), metrics.gauge(table.KV_BYTES)
        fragmentation, age = metrics.gauge(table.KV_FRAGMENTATION), metrics.gauge(table.KV_CACHE_AGE_SECONDS)
        prompt = Total(metrics.counter(table.PREFIX_PROMPT_TOKENS))
        cached = Total(metrics.counter(table.PREFIX_CACHED_TOKENS))
        proposed = Total(metrics.counter(table.SPECULATION_PROPOSED_TOKENS))
        accepted = Total(metrics.counter(table.SPECULATION_ACCEPTED_TOKENS))
        late_masks = Total(metrics.counter(table.LATE_MASKS))
        metrics.gauge(table.SLOTS).set(num_slots)
        kv.labels("total").set(spec.num_blocks * spec.kv_bytes_per_block)

        def refresh() -> None:
            now = status()
            in_use.set(now.num_slots_in_use)
            running.set(now.num_running)
            paused.set(num_paused())
            memory = now.memory
            states = {
                "mapped": memory.num_mapped,
                "held": memory.num_held,
                "cached": memory.num_cached,
                "reserved": memory.num_reserved,
            }
            for name, num_blocks in states.items():
                kv.labels(name).set(num_blocks * spec.kv_bytes_per_block)
            fragmentation.set(memory.fragmentation)
            age.set(memory.cache_age_s)
            late_masks.is_now(now.num_late_masks)
            prompt.is_now(memory.prompt_tokens)
            cached.is_now(memory.cached_tokens)
            proposed.is_now(now.num_proposed_tokens)
            accepted.is_now(now.num_accepted_tokens)

        metrics.before_scrape(refresh)


def watch_experts(metrics: Metrics, counts: Callable[[], ExpertCounts]) -> None:
    """Of a model whose experts come on demand. Read with each scrape."""
    requests, copied = metrics.counter(table.EXPERT_REQUESTS), metrics.counter(table.EXPERT_COPIED_BYTES)
    hits, early, misses = (Total(requests.labels(outcome)) for outcome in ("hit", "early", "miss"))
    demand, ahead = (Total(copied.labels(reason)) for reason in ("demand", "ahead"))
    stall, wasted = Total(metrics.counter(table.EXPERT_STALL_SECONDS)), Total(metrics.counter(table.EXPERTS_WASTED))

    def refresh() -> None:
        now = counts()
        hits.is_now(now.num_hits)
        early.is_now(now.num_early)
        misses.is_now(now.num_misses)
        demand.is_now(now.demand_bytes)
        ahead.is_now(now.ahead_bytes)
        stall.is_now(now.stall_s)
        wasted.is_now(now.num_wasted)

    metrics.before_scrape(refresh)


def watch_encoder(metrics: Metrics, num_slots: int, num_running: Callable[[], int]) -> None:
    """An encoder's places: each text takes one."""
    in_use, running = metrics.gauge(table.SLOTS_IN_USE), metrics.gauge(table.RUNNING)
    metrics.gauge(table.SLOTS).set(num_slots)

    def refresh() -> None:
        in_use.set(num_running())
        running.set(num_running())

    metrics.before_scrape(refresh)


def weight_bytes(graph: Path) -> int:
    """What one pass reads of a model's weights; 0 where there is no such file."""
    weights = graph.with_suffix(".bin")
    return weights.stat().st_size if weights.is_file() else 0
