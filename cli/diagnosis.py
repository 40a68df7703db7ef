"""What holds a suite up, from its figures. Pure: each row of the table looks at the figures and says what it found.

Every finding has its evidence in numbers, and the next thing to do.
"""

from collections.abc import Callable, Sequence

from headrace.cli.device_findings import (
    device_full,
    flat_throughput,
    idle_with_queue,
    late_steps,
    memory_pressure,
    slowed_down,
    straggler,
)
from headrace.cli.figures import Figures
from headrace.cli.finding import Finding
from headrace.cli.gateway_findings import gateway_limit


def diagnose(figures: Figures) -> list[Finding]:
    """All findings, the likeliest causes first; [] where nothing is wrong."""
    return [finding for look in TABLE if (finding := look(figures)) is not None]


def no_executor(f: Figures) -> Finding | None:
    if f.level("executors", state="ready"):
        return None
    return Finding("no executor", "none is ready", "Start one; the end of the last one's log says why it left.")


def executor_lost(f: Figures) -> Finding | None:
    lost = f.grown("requests_lost_total")
    if not lost:
        return None
    return Finding("executor lost", f"{lost:.0f} requests lost theirs", "Look at its log and for out-of-memory kills.")


def displacement_storm(f: Figures) -> Finding | None:
    displaced, batches = f.grown("displacements_total"), f.grown("batches_total")
    if displaced <= 0.5 * batches or displaced < 5:
        return None
    evidence = f"{displaced:.0f} displacements at {batches:.0f} dispatches"
    return Finding("displacement storm", evidence, "Give realtime executors of its own, or lower max_displacements.")


def tokenizer_saturated(f: Figures) -> Finding | None:
    waiting, threads = f.level("prepare_waiting"), f.level("prepare_threads")
    if not threads or waiting <= 2 * threads:
        return None
    evidence = f"{waiting:.0f} prompts for {threads:.0f} threads"
    return Finding("tokenizer saturated", evidence, "More gateway.tokenizer_threads, or --preprocess remote.")


def slow_first_token(f: Figures) -> Finding | None:
    prepare, first = f.mean("prepare_seconds"), f.mean("ttft_seconds")
    if not first or prepare < 0.5 * first:
        return None
    evidence = f"preparing takes {prepare * 1000:.0f} of {first * 1000:.0f} ms to the first token"
    return Finding("slow first token: preprocess", evidence, "More gateway.tokenizer_threads, or --preprocess remote.")


def screen_slow(f: Figures) -> Finding | None:
    held, first = f.mean("screen_held_seconds"), f.mean("ttft_seconds")
    if not first or held < 0.3 * first:
        return None
    evidence = f"the screen holds tokens for {held * 1000:.0f} of {first * 1000:.0f} ms"
    return Finding("slow first token: screen", evidence, "More screen.threads, or a preprocess service of its own.")


def screen_without_verdict(f: Figures) -> Finding | None:
    none, judged = f.grown("screen_verdicts_total", verdict="none"), f.grown("screen_verdicts_total")
    if not judged or none < 0.01 * judged:
        return None
    return Finding(
        "screen without verdicts", f"{none:.0f} of {judged:.0f} prompts", "More screen.threads or budget_ms."
    )


def scheduling_share(f: Figures) -> Finding | None:
    deciding, computing = f.grown("scheduling_seconds_total"), f.grown("step_seconds_sum")
    if not computing or deciding < 0.1 * computing:
        return None
    share = deciding / computing
    return Finding("scheduling share high", f"{share:.0%} of inference time", "A scheduler for each pool of models.")


def slow_readers(f: Figures) -> Finding | None:
    unread, running = f.level("unread_frames"), f.level("gateway_running_requests")
    if unread < 16 or unread < 4 * running:
        return None
    evidence = f"{unread:.0f} pieces wait for the callers of {running:.0f} requests"
    return Finding("client reads slowly", evidence, "Look at the callers' loops and their network.")


def padding(f: Figures) -> Finding | None:
    real, padded = f.grown("batch_tokens_total"), f.grown("batch_padding_tokens_total")
    if real + padded < 10_000 or padded < 0.4 * (real + padded):
        return None
    evidence = f"{padded / (real + padded):.0%} of computed tokens are padding"
    return Finding("bucket edges gone wrong", evidence, "headrace scheduler set buckets=adaptive")


TABLE: Sequence[Callable[[Figures], Finding | None]] = (
    no_executor,
    executor_lost,
    memory_pressure,
    device_full,
    idle_with_queue,
    gateway_limit,
    displacement_storm,
    tokenizer_saturated,
    slow_first_token,
    screen_without_verdict,
    screen_slow,
    late_steps,
    straggler,
    slowed_down,
    flat_throughput,
    scheduling_share,
    slow_readers,
    padding,
)
