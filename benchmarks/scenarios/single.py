"""single: one stream at a time, ours beside llama.cpp's server: tokens a second and time to first token."""

from dataclasses import asdict

from headrace.benchmarks.closed_loop import Reply, median_ttft_s, stream_tokens_per_s
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import PROMPT_TOKENS, Lab
from headrace.benchmarks.measure import median, single_peer, single_suite
from headrace.benchmarks.peers.catalogue import LLAMACPP
from headrace.benchmarks.peers.running import Peers, started_peers
from headrace.benchmarks.suite import started

OURS = "headrace"
WARM_REQUESTS = 3


async def run(lab: Lab) -> Report:
    """`num_requests` requests a system in each of the rounds, after a few that are not counted."""
    prompts, rounds = lab.prompts(), dict[str, list[list[Reply]]]()
    async with started_peers(lab, (LLAMACPP.name,), 1) as peers, started(lab.model, lab.log("suite")) as suite:
        driver = peers.running.get(LLAMACPP.name)
        for number in range(lab.rounds):
            lab.say(f"round {number + 1} of {lab.rounds}")
            asked = prompts.draw_many(WARM_REQUESTS + lab.num_requests, PROMPT_TOKENS)
            rounds.setdefault(OURS, []).append((await single_suite(suite, asked))[WARM_REQUESTS:])
            if driver:
                rounds.setdefault(LLAMACPP.name, []).append((await single_peer(driver, asked))[WARM_REQUESTS:])
        return report(lab, rounds, peers)


def report(lab: Lab, rounds: dict[str, list[list[Reply]]], peers: Peers) -> Report:
    """Medians over the rounds of each system's rate and of its median time to first token."""
    rates = {name: median([stream_tokens_per_s(replies) for replies in taken]) for name, taken in rounds.items()}
    ttfts = {name: median([median_ttft_s(replies) for replies in taken]) for name, taken in rounds.items()}
    rows = [
        Row(
            name,
            {"tokens/s": f"{rates[name]:,.1f}", "TTFT p50 ms": f"{(ttfts[name] or 0) * 1000:,.1f}"},
            peers.note(name),
        )
        for name in rounds
    ]
    return Report(
        "single",
        [
            Figure("single.ratio_llamacpp", _ratio(rates.get(OURS), rates.get(LLAMACPP.name))),
            Figure("single.ttft_ratio_llamacpp", _ratio(ttfts.get(OURS), ttfts.get(LLAMACPP.name))),
        ],
        rows + [Row(name, note=reason) for name, reason in peers.missing.items()],
        settings=lab.settings() | {"requests": lab.num_requests, "peers": peers.options()},
        versions=peers.versions(),
        raw={
            "rounds": {
                name: [[asdict(reply) for reply in replies] for replies in taken] for name, taken in rounds.items()
            },
            "trials": peers.trials,
        },
    )


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None
