"""Goodput: requests a second that met what was promised of them, and the load that it is measured under."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.benchmarks.conversation_lengths import Recording, excerpt
from headrace.benchmarks.open_loop import Arrival, ClassStream, Outcome, open_loop, steady_rate
from headrace.benchmarks.prompts import Prompts

TTFT_S = 1.0
INTER_TOKEN_S = 0.1
"""A request is met when its first token comes within TTFT_S and the others, on average, INTER_TOKEN_S apart."""
LOAD = 0.8
"""Of what the suite can answer."""
WINDOWS = 1.5
"""A replay lasts so many of the lab's windows."""
BURST = 192
WARM_BURST = 64

DrawClass = Callable[[random.Random], str]


def all_normal(_: random.Random) -> str:
    """The class of requests that are all alike."""
    return "normal"


def inter_token_s(outcome: Outcome) -> float:
    """Mean seconds from one token to the next; 0 for an answer of one token."""
    return (outcome.total_s - outcome.ttft_s) / (outcome.num_tokens - 1) if outcome.num_tokens > 1 else 0.0


def is_met(outcome: Outcome) -> bool:
    return outcome.ttft_s <= TTFT_S and inter_token_s(outcome) <= INTER_TOKEN_S


@dataclass(frozen=True, slots=True)
class Score:
    """Over all rounds together: met requests a second, their share, tokens a second within the windows, P99 of TTFT."""

    goodput: float
    met_share: float
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float

    def values(self) -> dict[str, str]:
        """For a table."""
        return {
            "goodput/s": f"{self.goodput:.2f}",
            "met": f"{self.met_share:.1%}",
            "tokens/s": f"{self.tokens_per_s:,.0f}",
            "TTFT p50 ms": f"{self.ttft_p50_s * 1000:,.0f}",
            "TTFT p99 ms": f"{self.ttft_p99_s * 1000:,.0f}",
        }


def score(rounds: Sequence[Sequence[Outcome]], window_s: float) -> Score:
    """Of rounds of `window_s` each, with at least one request; all requests that arrived count, whenever they ended."""
    outcomes = [outcome for each in rounds for outcome in each]
    firsts = sorted(outcome.ttft_s for outcome in outcomes)
    num_met, seconds = sum(map(is_met, outcomes)), window_s * len(rounds)
    return Score(
        num_met / seconds,
        num_met / len(outcomes),
        sum(outcome.window_tokens for outcome in outcomes) / seconds,
        firsts[len(firsts) // 2],
        firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
    )


def arrivals(
    recorded: Recording, prompts: Prompts, rate: float, window_s: float, seed: int, draw_class: DrawClass = all_normal
) -> list[Arrival]:
    """An excerpt of the recording at `rate` requests a second, with prompts of its lengths."""
    drawn = random.Random(seed)
    return [
        Arrival(at_s, prompts.draw(prompt_tokens), answer_tokens, draw_class(drawn))
        for at_s, prompt_tokens, answer_tokens in excerpt(*recorded, rate, window_s, drawn)
    ]


def burst(recorded: Recording, prompts: Prompts, count: int, seed: int) -> list[Arrival]:
    """So many requests of the recording's lengths at once."""
    drawn = random.Random(seed)
    lengths = [drawn.choice(recorded[1]) for _ in range(count)]
    return [Arrival(0.0, prompts.draw(prompt_tokens), answer, "normal") for prompt_tokens, answer in lengths]


async def saturation(stream: ClassStream, recorded: Recording, prompts: Prompts, seed: int) -> float:
    """Requests a second that a system answers when all are there at once; a first burst teaches it its step times."""
    await open_loop(stream, burst(recorded, prompts, WARM_BURST, seed), float("inf"))
    outcomes = await open_loop(stream, burst(recorded, prompts, BURST, seed + 1), float("inf"))
    return steady_rate(outcome.ended_s for outcome in outcomes)
