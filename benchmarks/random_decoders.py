"""Small decoders of each kind with random weights, which the torch engine's tests and checks run: nothing to download.

Wants torch and transformers (`headrace[executor-torch]`).
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # wide, so that logits are apart and context counts
    "eos_token_id": None,
    "pad_token_id": 0,
}
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"sliding_window": 24, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 24, "query_pre_attn_scalar": 16},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 16, "num_experts_per_tok": 4},
    "qwen3_moe": {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 48},
}
KINDS = tuple(_KINDS)


def random_decoder(kind: str, vocab_size: int = 512, **changes: Any) -> Any:
    """The same weights for the same settings; `changes` are of the configuration."""
    config = AutoConfig.for_model(kind, vocab_size=vocab_size, **{**_COMMON, **_KINDS[kind], **changes})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.set_experts_implementation("eager")
    return model.eval()
