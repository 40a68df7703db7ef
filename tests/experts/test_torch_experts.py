"""A model whose experts come on demand says, bit for bit, what it says with all of them resident."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig

from headrace.core.errors import EngineNotReady
from headrace.executor.engines.torch_experts import ExpertsOnDemand

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "mixtral": MixtralConfig(**COMMON, num_local_experts=8, num_experts_per_tok=2),
    "olmoe": OlmoeConfig(**COMMON, num_experts=16, num_experts_per_tok=4),
    "qwen2_moe": Qwen2MoeConfig(
        **COMMON, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=24, shared_expert_intermediate_size=40
    ),
    "qwen3_moe": Qwen3MoeConfig(
        **COMMON, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=24, head_dim=8, norm_topk_prob=True
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost such small products more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


PROMPTS = torch.arange(60).reshape(4, 15) * 7 % 96


def made(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """The same weights each time."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
    return model.to(dtype).eval()


@contextmanager
def on_demand(model: Any, num_slots: int, **settings: Any) -> Iterator[ExpertsOnDemand]:
    experts = ExpertsOnDemand(model, num_slots, **settings)
    try:
        yield experts
    finally:
        experts.close()


def generated(model: Any, num_tokens: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, logits of each)."""
    with torch.inference_mode():
        found = model.generate(
            PROMPTS,
            attention_mask=torch.ones_like(PROMPTS),
            max_new_tokens=num_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
            eos_token_id=None,
        )
    return found.sequences, torch.stack(found.logits)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_bit_is_that_of_all_resident(name: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    tokens, logits = generated(made(config, dtype))
    num_experts = getattr(config, "num_local_experts", 0) or config.num_experts
    for num_slots in (1, 3, num_experts):
        model = made(config, dtype)
        with on_demand(model, num_slots) as experts:
            same_tokens, same_logits = generated(model)
            assert torch.equal(tokens, same_tokens)
            assert torch.equal(logits, same_logits)
            counts = experts.counts
            assert counts.num_misses > 0
            assert (counts.stall_s > 0) == (counts.demand_bytes > 0)
            if num_slots == num_experts:
                assert counts.num_misses <= 3 * num_experts, "each comes once at most"


def test_what_is_fetched_ahead_changes_no_bit() -> None:
    tokens, _ = generated(made(CONFIGS["olmoe"]), 40)
    for ahead in (False, True):
        model = made(CONFIGS["olmoe"])
        with on_demand(model, 10, ahead=ahead) as experts:
            assert torch.equal(tokens, generated(model, 40)[0])
            assert (experts.counts.num_early > 0) == ahead


def test_topics_of_requests_are_learnt() -> None:
    """Tokens of two topics in one step; what is fetched at admission is what the topic asked for most."""
    model = made(CONFIGS["mixtral"])
    vectors = np.eye(2, dtype=np.float32)
    with on_demand(model, 4) as experts, torch.inference_mode():
        known = [experts.admit(vector) for vector in vectors]
        assert known == [0, 1]
        ids = torch.tensor([[3] * 8 + [50] * 8])
        experts.topics = np.repeat(np.array(known, np.int32), 8)
        model(ids)
        history = experts.cache.history
        first, second = (set(np.argsort(-history.of_topic(0, topic))[:2].tolist()) for topic in known)
        assert first != second
        experts.topics = np.zeros(3, np.int32)  # of another step: not taken
        model(ids)


def test_weights_are_not_kept_twice() -> None:
    model = made(CONFIGS["mixtral"])
    whole = sum(each.numel() for each in model.parameters())
    layout_numel = 3 * 8 * (2 * 48 * 32 + 48 * 32)
    with on_demand(model, 2):
        assert sum(each.numel() for each in model.parameters()) == whole - layout_numel


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(EngineNotReady, match="LlamaForCausalLM has no experts") as caught:
        ExpertsOnDemand(made(LlamaConfig(**COMMON)), 2)
    assert caught.value.field == "executor.resident_experts"


def test_experts_of_another_form_are_refused() -> None:
    from transformers import GptOssConfig

    config = GptOssConfig(**{**COMMON, "head_dim": 8}, num_local_experts=4, num_experts_per_tok=2)
    with pytest.raises(EngineNotReady, match=r"GptOssExperts is not of the form that is kept on demand: .*has_bias"):
        ExpertsOnDemand(made(config), 2)
