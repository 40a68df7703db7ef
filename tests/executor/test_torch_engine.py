"""The torch engine gives transformers' own logits for each kind of decoder, and says what it cannot run."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.benchmarks.random_decoders import KINDS, random_decoder
from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision
from headrace.executor.engines.protocol import StepPlan
from headrace.executor.engines.torch_engine import TorchEngine, load

NUM_TOKENS = 70


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost such small products more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def whole(token_ids: np.ndarray) -> StepPlan:  # type: ignore[type-arg]
    """One prompt over blocks in no order, every token's logits wanted."""
    blocks = np.array([4, 2, 7, 1, 9], np.int32)
    begins = np.array([0, len(token_ids)], np.int32)
    ends = np.array([0, len(blocks)], np.int32)
    return StepPlan(token_ids, np.zeros(1, np.int32), begins, blocks, ends, np.arange(len(token_ids)))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_transformers_own(kind: str) -> None:
    token_ids = np.random.default_rng(1).integers(1, 512, NUM_TOKENS)
    with torch.inference_mode():
        expected = random_decoder(kind)(torch.from_numpy(token_ids)[None]).logits[0].numpy()
    experts = 3 if kind in ("mixtral", "olmoe", "qwen3_moe") else 0
    engine = TorchEngine(random_decoder(kind), Precision.FP32, kv_bytes=1 << 24, resident_experts=experts)
    try:
        output = engine.forward(whole(token_ids))
        got = np.stack([output.logits(row) for row in range(NUM_TOKENS)])
        np.testing.assert_allclose(got, expected, atol=1e-4)
        counts = engine.expert_counts()
        assert (counts.num_misses > 0) == (experts > 0)
    finally:
        engine.close()


@pytest.mark.parametrize("kind", ["mixtral", "olmoe"])
def test_experts_on_demand_change_no_bit(kind: str) -> None:
    token_ids = np.random.default_rng(2).integers(1, 512, NUM_TOKENS)
    found = []
    for resident in (0, 1, 4):
        engine = TorchEngine(random_decoder(kind), Precision.FP32, kv_bytes=1 << 24, resident_experts=resident)
        output = engine.forward(whole(token_ids))
        found.append(np.stack([output.logits(row) for row in range(NUM_TOKENS)]))
        engine.close()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_a_checkpoint_is_loaded(tmp_path) -> None:  # type: ignore[no-untyped-def]
    random_decoder("llama").save_pretrained(tmp_path)
    engine = load(tmp_path, Precision.BF16, kv_bytes=1 << 24)
    assert engine.spec.precision is Precision.BF16
    assert np.isfinite(engine.forward(whole(np.arange(1, 20))).logits(3)).all()
    engine.close()


def test_what_cannot_run_is_told(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(EngineNotReady, match="does not compute in int8") as caught:
        TorchEngine(random_decoder("llama"), Precision.INT8, kv_bytes=1 << 24)
    assert caught.value.limit == "fp32, bf16"
    with pytest.raises(EngineNotReady, match="holds no two KV blocks") as caught:
        TorchEngine(random_decoder("llama"), Precision.FP32, kv_bytes=1 << 10)
    assert caught.value.field == "executor.kv_bytes"
    with pytest.raises(EngineNotReady, match="LlamaForCausalLM has no experts"):
        TorchEngine(random_decoder("llama"), Precision.FP32, kv_bytes=1 << 24, resident_experts=2)
    with pytest.raises(EngineNotReady, match="torch cannot load"):
        load(tmp_path, Precision.FP32, kv_bytes=1 << 24)
    mamba = AutoConfig.for_model("mamba", vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(EngineNotReady):
        TorchEngine(AutoModelForCausalLM.from_config(mamba), Precision.FP32, kv_bytes=1 << 24)
