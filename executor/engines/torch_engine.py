"""Any transformers decoder whose layers go through its attention interface, by torch on the CPU, over our paged KV.

A step is one packed row of all new tokens: what is computed token by token is computed once for all, attention row by
row (`torch_kv`). A mixture's experts can be kept on demand (`torch_experts`). Not exact: products of other sizes may
take other kernels, so a token's logits move in their last digits with its company. Not proved on a GPU.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision
from headrace.executor.engines.candidates import CandidateOutput
from headrace.executor.engines.protocol import EngineSpec, Float32, Int32, StepPlan
from headrace.executor.engines.torch_experts import ExpertsOnDemand
from headrace.executor.engines.torch_kv import BLOCK_TOKENS, IMPLEMENTATION, KvProbe, PagedKv, register
from headrace.executor.experts.counts import ExpertCounts
from headrace.executor.hardware.defaults import host

NUM_CANDIDATES = 64
_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


class TorchEngine:
    """Over a loaded `model`, which is its own from now on. `kv_bytes` is the memory that KV blocks may take.

    With `resident_experts` so many of each layer's experts have a place at once, and the rest are fetched when routers
    ask for them; 0: all are resident.
    """

    def __init__(self, model: Any, precision: Precision, *, kv_bytes: int, resident_experts: int = 0) -> None:
        """Raises EngineNotReady where layers have no attention of the known kind, in a precision other than fp32 and
        bf16, where `kv_bytes` hold no two blocks, or the model has no experts to keep on demand."""
        if precision not in _DTYPES:
            raise EngineNotReady(
                f"the torch engine does not compute in {precision.name.lower()}",
                field="executor.precision",
                limit="fp32, bf16",
            )
        dtype = _DTYPES[precision]
        self._model = model.to(dtype).eval()
        config = model.config.get_text_config()
        register()
        self._model.set_attn_implementation(IMPLEMENTATION)
        probe = KvProbe()
        self._give(probe)
        with torch.inference_mode():
            self._logits(torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), torch.zeros(1).long())
        shapes = probe.shapes(config.num_hidden_layers, type(model).__name__)
        block_bytes = PagedKv.block_bytes(shapes, dtype)
        num_blocks = kv_bytes // block_bytes
        if num_blocks < 2:
            raise EngineNotReady(
                f"kv_bytes {kv_bytes} holds no two KV blocks of {block_bytes} bytes",
                field="executor.kv_bytes",
                limit=f">= {2 * block_bytes}",
            )
        self._experts = ExpertsOnDemand(self._model, resident_experts) if resident_experts else None
        self._kv = PagedKv(shapes, num_blocks, dtype)
        self._give(self._kv)
        cpu = host().cpu
        self.spec = EngineSpec(
            name="torch",
            precision=precision,
            vocab_size=config.vocab_size,
            context_tokens=config.max_position_embeddings,
            block_tokens=BLOCK_TOKENS,
            num_blocks=num_blocks,
            kv_bytes_per_block=block_bytes,
            min_rows=1,
            min_chunk_tokens=1,
            num_candidates=min(NUM_CANDIDATES, config.vocab_size),
            exact=False,
            extent_blocks=self._kv.memory.extent_blocks,
            architecture=cpu.architecture(torch.get_num_threads()),
        )

    def forward(self, plan: StepPlan) -> CandidateOutput:
        positions = self._kv.begin(plan)
        with torch.inference_mode():
            logits = self._logits(
                torch.from_numpy(plan.token_ids), positions, torch.from_numpy(plan.wanted_tokens)
            ).float()
            values, ids = torch.topk(logits, self.spec.num_candidates, dim=-1, sorted=False)
        return CandidateOutput(ids.numpy().astype(np.int32), values.numpy(), logits.numpy())

    def copy_block(self, source: int, target: int) -> None:
        self._kv.copy_block(source, target)

    def release_blocks(self, blocks: Int32) -> None:
        self._kv.unmap(blocks)

    def expert_counts(self) -> ExpertCounts:
        return ExpertCounts() if self._experts is None else self._experts.counts

    def admit(self, vector: Float32 | None) -> int:
        """A request whose text has this vector joins: its experts are fetched where there is time. Its topic, or -1."""
        return -1 if self._experts is None else self._experts.admit(vector)

    def close(self) -> None:
        self._kv.close()
        if self._experts is not None:
            self._experts.close()

    def _logits(self, token_ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """[R, V]."""
        output = self._model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=wanted
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _give(self, kv: PagedKv | KvProbe) -> None:
        for module in self._model.modules():
            if hasattr(module, "layer_idx"):
                module.paged_kv = kv


def load(
    folder: Path, precision: Precision, *, kv_bytes: int, threads: int = 0, resident_experts: int = 0
) -> TorchEngine:
    """A checkpoint as transformers writes it: config.json and safetensors. No code out of it is run.

    Raises EngineNotReady as TorchEngine, and where it cannot be loaded.
    """
    if threads:
        torch.set_num_threads(threads)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=_DTYPES.get(precision, torch.float32), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise EngineNotReady(
            f"torch cannot load {folder.name}: {' '.join(str(error).split())}", field="model"
        ) from error
    return TorchEngine(model, precision, kv_bytes=kv_bytes, resident_experts=resident_experts)
