"""saturate: output tokens a second with every stream busy, ours over the best peer, measured in turns."""

from typing import Any

from headrace.benchmarks.closed_loop import Window, median_ttft_s
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import NUM_STREAMS, Lab
from headrace.benchmarks.measure import median, saturate_peer, saturate_suite, window_json
from headrace.benchmarks.peers.catalogue import ENGINES, PEERS
from headrace.benchmarks.peers.running import Peers, started_peers
from headrace.benchmarks.suite import started
from headrace.core.errors import Unavailable

OURS = "headrace"


async def run(lab: Lab) -> Report:
    """Raises Unavailable where our own suite does not start; a failing peer is a row with its reason."""
    windows: dict[str, list[Window]] = {}
    prompts = lab.prompts()
    async with started_peers(lab, tuple(PEERS), NUM_STREAMS) as peers, started(lab.model, lab.log("suite")) as suite:
        for number in range(lab.rounds):
            lab.say(f"round {number + 1} of {lab.rounds}: {OURS}")
            windows.setdefault(OURS, []).append(await saturate_suite(suite, prompts, lab, lab.window_s))
            for name, driver in list(peers.running.items()):
                lab.say(f"round {number + 1} of {lab.rounds}: {name}")
                try:
                    windows.setdefault(name, []).append(await saturate_peer(driver, prompts, lab, lab.window_s))
                except Unavailable as error:
                    del peers.running[name]
                    peers.missing[name] = error.message
                    windows.pop(name, None)
        return report(lab, windows, peers)


def report(lab: Lab, windows: dict[str, list[Window]], peers: Peers) -> Report:
    """Medians over the rounds, the ratio to the best of the peers that were measured, and that to the best of all, an
    engine without its server included."""
    rates = {name: median([window.tokens_per_s for window in taken]) for name, taken in windows.items()}
    ours = rates[OURS]
    others = {name: rate for name, rate in rates.items() if name != OURS and rate}
    engines = {peer.name for peer in ENGINES}
    best = max(others.keys() - engines, key=lambda name: others[name], default=None)
    best_of_all = max(others, key=lambda name: others[name], default=None)

    def ratio(name: str | None) -> float | None:
        return ours / others[name] if name and ours is not None else None

    rows = [
        _row(name, taken, rates[name], "; ".join(filter(None, ["best peer" if name == best else "", peers.note(name)])))
        for name, taken in windows.items()
    ]
    rows += [Row(name, note=reason) for name, reason in peers.missing.items()]
    raw: dict[str, Any] = {name: [window_json(window) for window in taken] for name, taken in windows.items()}
    return Report(
        "saturate",
        [
            Figure("saturate.ratio_best_peer", ratio(best)),
            Figure("saturate.ratio_best_engine", ratio(best_of_all)),
            Figure("saturate.tokens_per_s", ours),
        ],
        rows,
        settings=lab.settings() | {"streams": NUM_STREAMS, "peers": peers.options()},
        versions=peers.versions(),
        raw={"windows": raw, "trials": peers.trials},
    )


def _row(name: str, windows: list[Window], rate: float | None, note: str) -> Row:
    ttfts = [reply for window in windows for reply in window.replies]
    return Row(
        name,
        {
            "tokens/s": "–" if rate is None else f"{rate:,.0f}",
            "rounds": " ".join(f"{window.tokens_per_s:,.0f}" for window in windows),
            "TTFT p50 ms": f"{median_ttft_s(ttfts) * 1000:,.0f}",
        },
        note,
    )
