"""replay: recorded conversations at their recorded distances: requests that meet their promises, beside the peers.

The rate is 80 % of what our suite answers of the same lengths, measured in the same run; every system gets the same
requests at the same times, in turns. All are of one class, since not every peer has classes.
"""

from dataclasses import asdict
from typing import Any

from headrace.benchmarks.conversation_lengths import MOST, SHRINK, TRACE, recording
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.goodput import INTER_TOKEN_S, LOAD, TTFT_S, WINDOWS, arrivals, saturation, score
from headrace.benchmarks.lab import NUM_STREAMS, Lab
from headrace.benchmarks.measure import open_peer_loop
from headrace.benchmarks.open_loop import Outcome, open_loop
from headrace.benchmarks.peers.catalogue import SERVERS
from headrace.benchmarks.peers.running import Peers, started_peers
from headrace.benchmarks.suite import started
from headrace.core.errors import Unavailable

OURS = "headrace"
PROMISE = {"HEADRACE_EXECUTOR__NORMAL_INTER_TOKEN_MS": f"{INTER_TOKEN_S * 1000:g}"}
"""The pace that is asked of our suite: what a request must meet."""


async def run(lab: Lab) -> Report:
    """Raises Unavailable where our own suite does not start; a failing peer is a row with its reason."""
    recorded, prompts, window_s = recording(lab.workloads, lab.seed), lab.prompts(), WINDOWS * lab.window_s
    rounds: dict[str, list[list[Outcome]]] = {}
    async with (
        started_peers(lab, [peer.name for peer in SERVERS], NUM_STREAMS, context_tokens=sum(MOST)) as peers,
        started(lab.model, lab.log("suite"), PROMISE) as suite,
    ):
        lab.say(f"bursts: what {OURS} answers")
        capacity = await saturation(suite.stream, recorded, prompts, lab.seed)
        lab.say(f"{capacity:.2f} requests/s; the replay has {LOAD * capacity:.2f}")
        for number in range(lab.rounds):
            load = arrivals(recorded, prompts, LOAD * capacity, window_s, lab.seed + number)
            lab.say(f"round {number + 1} of {lab.rounds}: {OURS}")
            rounds.setdefault(OURS, []).append(await open_loop(suite.stream, load, window_s))
            for name, driver in list(peers.running.items()):
                lab.say(f"round {number + 1} of {lab.rounds}: {name}")
                try:
                    rounds.setdefault(name, []).append(await open_peer_loop(driver, load, window_s))
                except Unavailable as error:
                    del peers.running[name]
                    peers.missing[name] = error.message
                    rounds.pop(name, None)
        return report(lab, rounds, capacity, peers)


def report(lab: Lab, rounds: dict[str, list[list[Outcome]]], capacity: float, peers: Peers) -> Report:
    """Goodput over all rounds together, and the ratio to the best peer; none where no peer met a single request."""
    window_s = WINDOWS * lab.window_s
    scores = {name: score(each, window_s) for name, each in rounds.items()}
    others = {name: each.goodput for name, each in scores.items() if name != OURS and each.goodput}
    best = max(others, key=lambda name: others[name]) if others else None
    ratio = scores[OURS].goodput / others[best] if best else None
    rows = [
        Row(name, each.values(), "; ".join(filter(None, ["best peer" if name == best else "", peers.note(name)])))
        for name, each in scores.items()
    ]
    rows += [Row(name, note=reason) for name, reason in peers.missing.items()]
    raw: dict[str, Any] = {name: [[asdict(o) for o in each] for each in taken] for name, taken in rounds.items()}
    return Report(
        "replay",
        [Figure("replay.goodput_ratio_best_peer", ratio), Figure("replay.goodput_per_s", scores[OURS].goodput)],
        rows,
        settings=lab.settings()
        | {"trace": TRACE, "shrink": SHRINK, "most": MOST, "load": LOAD, "replay_s": window_s, "ours": PROMISE}
        | {"capacity_rps": capacity, "ttft_s": TTFT_S, "inter_token_s": INTER_TOKEN_S, "peers": peers.options()},
        versions=peers.versions(),
        raw={"outcomes": raw, "trials": peers.trials},
        notes=[
            f"met: first token within {TTFT_S:g} s, then {INTER_TOKEN_S * 1000:g} ms a token at most on average",
            f"{LOAD * capacity:.2f} requests/s arrive, {LOAD:.0%} of what {OURS} answers; goodput counts those met",
        ],
    )
