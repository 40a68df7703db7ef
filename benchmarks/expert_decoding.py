"""A mixture of experts with random weights that decodes, its experts on demand: what the experts scenario measures.

Imported when the scenario runs, since it needs torch and transformers (`headrace[executor-torch]`).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, OlmoeConfig

from headrace.executor.engines.torch_experts import ExpertsOnDemand
from headrace.executor.experts.counts import ExpertCounts

NUM_LAYERS, NUM_EXPERTS, TOP_K, VOCAB = 8, 32, 4, 8192
WARM_STEPS = 4
_EMBEDDING_SCALE = 50.0  # a token decides on its experts then, as in trained models; else all tokens take the same


@dataclass(frozen=True, slots=True)
class Decoded:
    """`token_ids` [B, S]; `step_s` of each of the measured decode steps, what was counted in them, and how many of a
    layer's experts a step asked for."""

    token_ids: tuple[tuple[int, ...], ...]
    step_s: tuple[float, ...]
    counts: ExpertCounts

    @property
    def asked_each(self) -> float:
        counts = self.counts
        return (counts.num_hits + counts.num_early + counts.num_misses) / (len(self.step_s) * NUM_LAYERS)


def random_model() -> Any:
    """OLMoE's form, 1.5 MiB an expert in fp32; the same weights each time."""
    torch.manual_seed(1)
    config = OlmoeConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=256,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", experts_implementation="eager").eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(_EMBEDDING_SCALE)
    return model


def expert_bytes() -> int:
    return 3 * 512 * 256 * 4


def decode(
    model: Any, texts: Sequence[Sequence[int]], num_steps: int, num_slots: int, ahead: bool, link_bytes_per_s: float
) -> Decoded:
    """All rows at once, each a token of its text a step: what a random model says would go in circles. The beginning of
    the texts, taken in whole, and `WARM_STEPS` steps are not measured. `token_ids` are the likeliest after each.

    Each text is of the topic that its first token says, and joins with that as its vector.
    """
    ids = torch.tensor(texts)
    num_steps += WARM_STEPS
    begin = ids.shape[1] - num_steps
    with _given_back(model), _one_thread(), closing(_on_demand(model, num_slots, ahead, link_bytes_per_s)) as experts:
        vectors = np.eye(4, dtype=np.float32)
        topics = np.array([experts.admit(vectors[topic_of(text)]) for text in texts], np.int32)
        likeliest, step_s, before = [], [], experts.counts
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            for step in range(num_steps + 1):
                token_ids = ids[:, begin + step - 1 : begin + step] if step else ids[:, :begin]
                experts.topics = np.repeat(topics, token_ids.shape[1])
                if step == WARM_STEPS + 1:
                    before = experts.counts
                begun = time.perf_counter()
                output = model(token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                if step > WARM_STEPS:
                    step_s.append(time.perf_counter() - begun)
                likeliest.append(output.logits[:, -1].argmax(-1).tolist())
        return Decoded(tuple(zip(*likeliest, strict=True)), tuple(step_s), experts.counts.since(before))


def _on_demand(model: Any, num_slots: int, ahead: bool, link_bytes_per_s: float) -> ExpertsOnDemand:
    return ExpertsOnDemand(model, num_slots, ahead=ahead, link_bytes_per_s=link_bytes_per_s)


@contextmanager
def _given_back(model: Any) -> Iterator[None]:
    """The modules have their weights again afterwards."""
    modules = [module for module in model.modules() if hasattr(module, "gate_up_proj")]
    weights = [(module.gate_up_proj, module.down_proj) for module in modules]
    try:
        yield
    finally:
        for module, (gate_up, down) in zip(modules, weights, strict=True):
            module.gate_up_proj, module.down_proj = gate_up, down


@contextmanager
def _one_thread() -> Iterator[None]:
    """A step is small; the copies have the other one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def topic_of(prompt: Sequence[int]) -> int:
    """Of four: which quarter of the vocabulary its tokens are from."""
    return prompt[0] * 4 // VOCAB


def of_topic(token_ids: Sequence[int], topic: int) -> list[int]:
    """The same text with its tokens in a topic's quarter of the vocabulary."""
    return [topic * VOCAB // 4 + token % (VOCAB // 4) for token in token_ids]
