"""Scenarios by name."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.benchmarks.figures import Report
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.scenarios import (
    ablation,
    agree,
    buckets,
    chaos,
    exact,
    experts,
    memory,
    overhead,
    precision,
    prefix,
    replay,
    saturate,
    sched,
    screen,
    single,
    sla,
    static,
    structured,
    tracing,
    vip,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`what` is one line for the list; `figures` are the names it reports."""

    what: str
    run: Callable[[Lab], Coroutine[Any, Any, Report]]
    figures: tuple[str, ...]


SCENARIOS: Mapping[str, Scenario] = {
    "saturate": Scenario(
        "64 busy streams, 128 tokens in, 64 out: output tokens/s beside vLLM, OpenVINO GenAI and llama.cpp",
        saturate.run,
        ("saturate.ratio_best_peer", "saturate.ratio_best_engine", "saturate.tokens_per_s"),
    ),
    "single": Scenario(
        "one stream: tokens/s and time to first token beside llama.cpp's server",
        single.run,
        ("single.ratio_llamacpp", "single.ttft_ratio_llamacpp"),
    ),
    "replay": Scenario(
        "recorded conversations at 80 % load: requests a second that meet their promises beside the peers",
        replay.run,
        ("replay.goodput_ratio_best_peer", "replay.goodput_per_s"),
    ),
    "ablation": Scenario(
        "the replay's load with each technique switched off in turn: what each is worth",
        ablation.run,
        (),
    ),
    "overhead": Scenario(
        "time to first token that the suite adds to the bare engine, and the scheduler's share at saturation",
        overhead.run,
        ("overhead.ttft_ms", "overhead.scheduling_share"),
    ),
    "tracing": Scenario(
        "every stream busy, with each request traced and with none: what tracing costs",
        tracing.run,
        ("tracing.cost", "tracing.cpu_cost"),
    ),
    "exact": Scenario(
        "tokens and logprobs of requests alone against the same in random company, bit for bit",
        exact.run,
        ("exact.mismatches", "exact.cost"),
    ),
    "vip": Scenario(
        "one in ten realtime in a flood at 120 %: classes against first come first served, and vLLM's priorities",
        vip.run,
        ("vip.realtime_mean_cut", "vip.realtime_p99_cut", "vip.normal_throughput_change"),
    ),
    "static": Scenario(
        "mixed lengths: continuous batching through the suite against static batching on the bare engine",
        static.run,
        ("static.throughput_ratio", "static.p99_ratio"),
    ),
    "agree": Scenario(
        "a recorded trace through the suite and through the simulator: throughput and mean waits of both",
        agree.run,
        ("agree.throughput_gap", "agree.wait_gap", "agree.ttft_gap"),
    ),
    "screen": Scenario(
        "illegal requests blocked at saturation, time added to legal ones, recall and over-blocking of each file",
        screen.run,
        (
            "screen.block_ms_p99",
            "screen.added_ttft_ms_p50",
            "screen.recall",
            "screen.recall_injection",
            "screen.overblock",
            "screen.overblock_xstest",
        ),
    ),
    "sla": Scenario(
        "answers cut off at their SLA at saturation: how late the cut is, and what cannot be found after a restart",
        sla.run,
        ("sla.partial_lag_ms_p99", "sla.lost"),
    ),
    "sched": Scenario(
        "events a second of the scheduler's policy, 1,000 executors, up to 100,000 waiting",
        sched.run,
        ("sched.events_per_s", "sched.growth"),
    ),
    "prefix": Scenario(
        "conversations that grow turn by turn: time to first token with the prefix cache on and off, and what it found",
        prefix.run,
        ("prefix.ttft_ratio", "prefix.hit_gap_points"),
    ),
    "precision": Scenario(
        "every stream busy in each precision of the model: what a token costs, and how well each predicts a text",
        precision.run,
        ("precision.cost_cut",),
    ),
    "structured": Scenario(
        "answers to JSON schemas that parse and validate, and what 64 streams lose when a quarter are bound to one",
        structured.run,
        ("structured.valid", "structured.cost"),
    ),
    "experts": Scenario(
        "a random mixture of experts, its experts on demand: hit rate, stall and speed over places and batch",
        experts.run,
        ("experts.mismatches", "experts.slowdown_half"),
    ),
    "memory": Scenario(
        "twice as many streams as KV memory fits: what fails, what lies unused under load, when it goes back",
        memory.run,
        ("memory.fragmentation", "memory.oom", "memory.return_s"),
    ),
    "chaos": Scenario(
        "80 % load while executor, scheduler and gateway are killed by turns: answers lost, with a seam, and errors",
        chaos.run,
        ("chaos.lost", "chaos.twice", "chaos.client_errors"),
    ),
    "buckets": Scenario(
        "padding waste on recorded prompt lengths, batches of 16 in multiples of 64, beside two published rules",
        buckets.run,
        (
            "buckets.waste",
            "buckets.waste_fixed32",
            "buckets.waste_power_of_two",
            "buckets.waste_any_rows",
            "buckets.waste_above_align",
        ),
    ),
}
