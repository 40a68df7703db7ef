"""The executor's spans, recorded after the fact from a sequence's times, so that the step loop never waits for them."""

from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer

from headrace.chassis import signals
from headrace.chassis.telemetry import from_frame, link_to
from headrace.core.request import FinishReason, Precision
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
                signals.ENGINE_MS: sequence.prefill_s * 1000,
            },
            links,
            start_time=sequence.accepted_ns,
        )
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
            signals.GENAI_FINISH_REASONS: [delta.finish.name.lower()],
        },
        links,
        start_time=prefill_end,
    )
    if sequence.guide is not None:
        decode.set_attribute(signals.LATE_MASKS, sequence.guide.late)
    if delta.error is not None:
        decode.set_attribute(signals.ERROR_TYPE, delta.error.reason)
        decode.set_status(Status(StatusCode.ERROR, delta.error.message))
    decode.end(now_ns)
