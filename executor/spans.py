"""The executor's spans, recorded after the fact from a sequence's times, so that the step loop never waits for them."""

from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from headrace.chassis import signals
from headrace.chassis.telemetry import from_frame, link_to
from headrace.core.errors import HeadraceError
from headrace.core.request import FinishReason, Precision
from headrace.executor.event_wait import OverdueWait
from headrace.executor.sequence import Sequence
from headrace.executor.step_result import Delta


def record(tracer: Tracer, executor_id: str, precision: Precision, delta: Delta, now_ns: int) -> None:
    """executor.prefill ends with the first token, executor.decode with the answer; one cut short has what it had."""
    sequence = delta.sequence
    if sequence is None or delta.job.trace is None or (delta.finish is FinishReason.NONE and delta.error is None):
        return
    trace, batch_trace, batch_id = delta.job.trace
    parent = from_frame(trace)
    batch = link_to(batch_trace)
    links = [Link(batch)] if batch.is_valid else []
    common = {
        signals.REQUEST_ID: delta.job.request_id,
        signals.EXECUTOR_ID: executor_id,
        signals.BATCH_ID: batch_id,
        signals.PRECISION: precision.name.lower(),
        "gen_ai.response.index": delta.index,
    }
    prefill_end = sequence.first_token_ns or now_ns
    if delta.index == delta.job.open_answers[0]:
        prefill = tracer.start_span(
            signals.EXECUTOR_PREFILL,
            parent,
            SpanKind.INTERNAL,
            {
                **common,
                signals.PROMPT_TOKENS: len(delta.job.prompt_ids),
                signals.NUM_CHUNKS: sequence.num_chunks,
                signals.ENGINE_MS: sequence.prefill_s * 1000,
            },
            links,
            start_time=sequence.accepted_ns,
        )
        _tell(prefill, sequence, sequence.accepted_ns, prefill_end)
        if not sequence.first_token_ns:
            _fail(prefill, delta.error)
        prefill.end(prefill_end)
    if not sequence.first_token_ns:
        return
    decode = tracer.start_span(
        signals.EXECUTOR_DECODE,
        parent,
        SpanKind.INTERNAL,
        {
            **common,
            signals.GENAI_OUTPUT_TOKENS: sequence.num_answer_tokens,
            signals.REPLAYED_TOKENS: len(delta.job.known(delta.index)),
            signals.NUM_STEPS: sequence.num_steps,
            signals.ENGINE_MS: sequence.decode_s * 1000,
            signals.GENAI_FINISH_REASONS: [delta.finish.name.lower()],
        },
        links,
        start_time=prefill_end,
    )
    if sequence.guide is not None:
        decode.set_attribute(signals.LATE_MASKS, sequence.guide.late)
    _tell(decode, sequence, prefill_end + 1, now_ns)
    _fail(decode, delta.error)
    decode.end(now_ns)


def _tell(span: Span, sequence: Sequence, begin_ns: int, end_ns: int) -> None:
    """Events of that time: when it was displaced, when it went on, what came late."""
    paused = [(at_ns, signals.DISPLACED) for at_ns, _ in sequence.pauses]
    resumed = [(at_ns, signals.RESUMED) for _, at_ns in sequence.pauses]
    for at_ns, name in sorted([*paused, *resumed]):
        if begin_ns <= at_ns <= end_ns:
            span.add_event(name, timestamp=at_ns)
    for at_ns, took_s in sequence.late_steps:
        if begin_ns <= at_ns <= end_ns:
            span.add_event(signals.LATE_STEP, {signals.STEP_MS: took_s * 1000}, at_ns)
    for wait in sequence.overdue:
        if begin_ns <= wait.at_ns <= end_ns:
            span.add_event(signals.OVERDUE_WAIT, _facts(wait), wait.at_ns)


def _facts(wait: OverdueWait) -> dict[str, str | float]:
    facts: dict[str, str | float] = {
        signals.WAIT_FOR: wait.what,
        signals.WAIT_LATENESS: wait.lateness.value,
        signals.WAITED_MS: wait.waited_s * 1000,
    }
    if wait.predicted_s is not None:
        facts[signals.WAIT_PREDICTED_MS] = wait.predicted_s * 1000
    return facts


def _fail(span: Span, error: HeadraceError | None) -> None:
    if error is not None:
        span.set_attribute(signals.ERROR_TYPE, error.reason)
        span.set_status(Status(StatusCode.ERROR, error.message))
