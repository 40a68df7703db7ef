"""The engines that the contract suite runs, and a driver that does with any of them what a step loop does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headrace.benchmarks.random_decoders import random_decoder
from headrace.chassis.config import default_home
from headrace.core.model import ModelInfo
from headrace.core.request import Precision
from headrace.executor.engines.openvino import OpenVinoEngine
from headrace.executor.engines.protocol import Engine, Float32, StepPlan
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.engines.torch_engine import TorchEngine
from headrace.models.add import add
from headrace.models.repository import Repository

REFERENCE = ModelInfo("reference", "decoder", "built in", context_tokens=4096, vocab_size=512, eos_token_ids=(256,))


def reference() -> Engine:
    return ReferenceEngine(REFERENCE, num_blocks=2048)


def openvino() -> Engine:
    """Wants the model: `headrace models add smollm2`."""
    return OpenVinoEngine(Repository(default_home()).get("smollm2"), kv_bytes=1 << 30, threads=2)


def variant(precision: Precision) -> Callable[[], Engine]:
    """The same model in another precision, which is added where it is missing."""

    def load() -> Engine:
        entry = add(default_home(), "smollm2", lambda stage, done: None, precisions=[precision]).entry
        return OpenVinoEngine(entry.variant(precision), kv_bytes=1 << 30, threads=2)

    return load


def small(kind: str, resident_experts: int = 0) -> Callable[[], Engine]:
    """A decoder of few parameters, its weights random and always the same."""

    def load() -> Engine:
        torch.set_num_threads(1)  # more cost such small products more than they save
        return TorchEngine(random_decoder(kind), Precision.FP32, kv_bytes=64 << 20, resident_experts=resident_experts)

    return load


LOADERS: dict[str, Callable[[], Engine]] = {
    "reference": reference,
    "openvino": openvino,
    "openvino-fp32": variant(Precision.FP32),
    "openvino-bf16": variant(Precision.BF16),
    "torch-llama": small("llama"),
    "torch-qwen3": small("qwen3"),
    "torch-gemma2": small("gemma2"),
    "torch-mixtral": small("mixtral", resident_experts=3),
    "torch-olmoe": small("olmoe", resident_experts=5),
}


@pytest.fixture(scope="session", params=sorted(LOADERS, reverse=True))
def load(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    """Loads the engine afresh."""
    return LOADERS[request.param]


@pytest.fixture(scope="session")
def engine(load: Callable[[], Engine]) -> Iterator[Engine]:
    loaded = load()
    yield loaded
    loaded.close()


@dataclass
class Run:
    """One sequence on the engine: its tokens, how many of them are in its blocks, and the logits of each new token."""

    tokens: list[int]
    blocks: list[int]
    past: int = 0
    rows: list[Float32] = field(default_factory=list)
    candidates: list[tuple[NDArray[np.int32], Float32]] = field(default_factory=list)
    best: list[tuple[int, float]] = field(default_factory=list)


class Driver:
    """Steps over one engine that keep to the bounds in its spec. Blocks are dealt out once; dummies have their own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.spec = engine.spec
        self._next_block = self.spec.min_rows

    def take(self, num_tokens: int) -> list[int]:
        """Fresh blocks for so many tokens, not in order."""
        count = -(-num_tokens // self.spec.block_tokens)
        blocks = list(range(self._next_block, self._next_block + count))
        self._next_block += count
        assert self._next_block <= self.spec.num_blocks, "the test takes more blocks than the engine has"
        return blocks[::-1]

    def start(self, prompt: Sequence[int], max_tokens: int) -> Run:
        return Run(list(prompt), self.take(len(prompt) + max_tokens))

    def step(self, runs: Sequence[Run], counts: Sequence[int]) -> None:
        """Puts the next counts[i] tokens of runs[i] in and keeps the last one's logits."""
        num_dummies = max(0, self.spec.min_rows - len(runs))
        dummies = [Run([1], [index]) for index in range(num_dummies)]
        everyone, lengths = [*runs, *dummies], [*counts, *[1] * num_dummies]
        tables = [
            run.blocks[: -(-(run.past + n) // self.spec.block_tokens)] for run, n in zip(everyone, lengths, strict=True)
        ]
        begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        plan = StepPlan(
            token_ids=np.concatenate(
                [run.tokens[run.past : run.past + n] for run, n in zip(everyone, lengths, strict=True)]
            ).astype(np.int64),
            past_lens=np.array([run.past for run in everyone], np.int32),
            subsequence_begins=begins,
            block_indices=np.concatenate(tables).astype(np.int32),
            block_indices_begins=np.concatenate([[0], np.cumsum([len(table) for table in tables])]).astype(np.int32),
            wanted_tokens=begins[1 : len(runs) + 1].astype(np.int64) - 1,
        )
        output = self.engine.forward(plan)
        for row, (run, count) in enumerate(zip(runs, counts, strict=True)):
            run.past += count
            run.rows.append(output.logits(row).copy())
            run.best.append((int(output.best[0][row]), float(output.best[1][row])))
            run.candidates.append((output.candidate_ids[row].copy(), output.candidate_logits[row].copy()))

    def prefill(self, runs: Sequence[Run]) -> None:
        """All that is pending, whole, in one step."""
        self.step(runs, [len(run.tokens) - run.past for run in runs])

    def greedy(self, runs: Sequence[Run], num_tokens: int) -> None:
        """Prefills, then decodes until each run has `num_tokens` rows; the last choice is not put in."""
        self.prefill(runs)
        for _ in range(num_tokens - 1):
            for run in runs:
                run.tokens.append(int(run.rows[-1].argmax()))
            self.step(runs, [1] * len(runs))

    def same(self, some: Sequence[Float32], others: Sequence[Float32]) -> None:
        """Bit for bit where the engine promises it; else closely."""
        assert len(some) == len(others)
        for place, (one, other) in enumerate(zip(some, others, strict=True)):
            if self.spec.exact:
                assert np.array_equal(one, other), f"row {place} differs by up to {np.abs(one - other).max()}"
            else:
                np.testing.assert_allclose(one, other, atol=0.05, err_msg=f"row {place}")


@pytest.fixture
def driver(engine: Engine) -> Driver:
    return Driver(engine)
