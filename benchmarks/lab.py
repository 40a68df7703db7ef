"""What every scenario is given: the model, where peers live, how long and how often to measure."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.benchmarks.prompts import Prompts
from headrace.models.repository import ModelEntry

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
NUM_STREAMS = 64


@dataclass(frozen=True, slots=True)
class Lab:
    """`home` holds models and peers; `peers` are the names to compare with; `say` shows progress."""

    home: Path
    entry: ModelEntry
    say: Callable[[str], None]
    rounds: int = 3
    window_s: float = 20.0
    warm_s: float = 8.0
    num_requests: int = 64
    seed: int = 1
    peers: tuple[str, ...] = ()
    workloads: Path | None = None

    @property
    def model(self) -> str:
        return self.entry.info.name

    @property
    def peers_home(self) -> Path:
        return self.home / "peers"

    def prompts(self) -> Prompts:
        return Prompts(self.entry.tokenizer, self.seed, self.workloads)

    def log(self, name: str) -> Path:
        return self.peers_home / "logs" / f"{name}.log"

    def settings(self) -> dict[str, Any]:
        """For the report."""
        return {
            "model": self.model,
            "model_digest": self.entry.info.digest,
            "rounds": self.rounds,
            "window_s": self.window_s,
            "warm_s": self.warm_s,
            "seed": self.seed,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "texts": str(self.workloads.name) if self.workloads else "generated",
        }
