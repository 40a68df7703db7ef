"""Paged keys and values for transformers models, and the attention over them.

A model that goes through transformers' attention interface calls `paged_attention` for each layer: the step's new keys
and values go into the rows' blocks, then each row sees its own context through its block table. Rows that decode are
taken together, padded to the longest; chunks of prompts one by one. KV lies in host arenas, under torch's tensors
without a copy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from headrace.core.errors import EngineNotReady
from headrace.executor.engines.protocol import Int32, StepPlan
from headrace.executor.memory.host_arena import HostArena
from headrace.executor.memory.layered import LayeredMemory

IMPLEMENTATION = "headrace_paged"
BLOCK_TOKENS = 16
_LOWEST = float("-inf")


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Of one layer's keys and values: heads, and what a head has of each."""

    num_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, slots=True)
class RowContext:
    """Rows of a step that are computed together: `tokens` [R, N] are their places in the step, `places` [R, S] where
    their contexts' tokens lie in the cache, `past` [R] how many of them are old, `total` [R] how many there are."""

    tokens: torch.Tensor
    places: torch.Tensor
    past: torch.Tensor
    total: torch.Tensor

    def mask(self, window: int | None) -> torch.Tensor:
        """[R, 1, N, S]: what each new token may see."""
        at = self.past[:, None] + torch.arange(self.tokens.shape[1])  # [R, N]
        columns = torch.arange(self.places.shape[1])
        seen = columns <= at[..., None]
        if window is not None:
            seen &= columns > at[..., None] - window
        return seen[:, None]


class PagedKv:
    """`num_blocks` blocks of BLOCK_TOKENS tokens of every layer. Set on a model's modules as `paged_kv`."""

    def __init__(self, shapes: list[LayerShape], num_blocks: int, dtype: torch.dtype) -> None:
        self.shapes = shapes
        self._arenas: list[HostArena] = []
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        sizes = []
        for shape in shapes:
            for size, tensors in ((shape.key_size, self._keys), (shape.value_size, self._values)):
                whole = (num_blocks * BLOCK_TOKENS, shape.num_heads, size)
                block_bytes = BLOCK_TOKENS * shape.num_heads * size * dtype.itemsize
                arena = HostArena(num_blocks * block_bytes)
                array = arena.as_array(np.uint8, (num_blocks * block_bytes,))
                tensors.append(torch.from_numpy(array).view(dtype).view(whole))
                self._arenas.append(arena)
                sizes.append(block_bytes)
        self.memory = LayeredMemory(self._arenas, sizes)
        self._slots = torch.empty(0, dtype=torch.int64)
        self._contexts: list[RowContext] = []
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    @staticmethod
    def block_bytes(shapes: list[LayerShape], dtype: torch.dtype) -> int:
        """Of all layers."""
        items = sum(shape.num_heads * (shape.key_size + shape.value_size) for shape in shapes)
        return BLOCK_TOKENS * items * int(dtype.itemsize)

    def begin(self, plan: StepPlan) -> torch.Tensor:
        """Makes ready for a step; returns the new tokens' positions [T]."""
        begins, tables = plan.subsequence_begins, plan.block_indices_begins
        lengths = np.diff(begins)
        row_places = []
        for row in range(len(lengths)):
            blocks = plan.block_indices[tables[row] : tables[row + 1]].astype(np.int64)
            places = (blocks[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).reshape(-1)
            row_places.append(places[: plan.past_lens[row] + lengths[row]])
        new = [places[past:] for places, past in zip(row_places, plan.past_lens, strict=True)]
        self._slots = torch.from_numpy(np.concatenate(new))
        singles = [row for row in range(len(lengths)) if lengths[row] == 1]
        groups = [singles] if singles else []
        groups += [[row] for row in range(len(lengths)) if lengths[row] > 1]
        self._contexts = [_context(group, plan, row_places) for group in groups]
        self._masks = {}
        return torch.from_numpy(plan.positions)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """query [H, T, D], key and value [Hkv, T, D]; returns [T, H, Dv]."""
        keys, values = self._keys[layer], self._values[layer]
        keys[self._slots] = key.transpose(0, 1)
        values[self._slots] = value.transpose(0, 1)
        output = query.new_empty(query.shape[1], query.shape[0], value.shape[-1])
        for number, context in enumerate(self._contexts):
            if (number, window) not in self._masks:
                self._masks[number, window] = context.mask(window)
            mask = self._masks[number, window]
            asked = query[:, context.tokens].transpose(0, 1)  # [R, H, N, D]
            seen_keys = keys[context.places].transpose(1, 2)  # [R, Hkv, S, D]
            seen_values = values[context.places].transpose(1, 2)
            if softcap is None:
                answer = torch.nn.functional.scaled_dot_product_attention(
                    asked, seen_keys, seen_values, attn_mask=mask, scale=scaling, enable_gqa=True
                )
            else:
                answer = _capped(asked, seen_keys, seen_values, mask, scaling, softcap)
            output[context.tokens] = answer.transpose(1, 2)
        return output

    def copy_block(self, source: int, target: int) -> None:
        """All layers."""
        here, there = (slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS) for block in (source, target))
        for cache in (*self._keys, *self._values):
            cache[there] = cache[here]

    def unmap(self, blocks: Int32) -> None:
        """Their memory goes back to the system."""
        self.memory.unmap_blocks(blocks)

    def close(self) -> None:
        """Harmless when repeated."""
        self._keys, self._values = [], []
        for arena in self._arenas:
            arena.close()


class KvProbe:
    """Stands in a model's first pass, to see what its layers' keys and values look like."""

    def __init__(self) -> None:
        self._found: dict[int, LayerShape] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """As PagedKv, of the right shape and nothing more."""
        self._found[layer] = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        return query.new_zeros(query.shape[1], query.shape[0], value.shape[2])

    def shapes(self, num_layers: int, kind: str) -> list[LayerShape]:
        """By layer. Raises EngineNotReady where some layer has no attention of this kind."""
        if sorted(self._found) != list(range(num_layers)):
            raise EngineNotReady(
                f"{kind}: {len(self._found)} of {num_layers} layers go through transformers' attention interface; "
                "the torch engine wants all",
                field="executor.engine",
            )
        return [self._found[layer] for layer in range(num_layers)]


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """For transformers' attention interface: one packed row of all the step's tokens, [1, heads, T, D] each."""
    if s_aux is not None:
        raise EngineNotReady(f"{type(module).__name__}: attention sinks are not supported", field="executor.engine")
    output = module.paged_kv.attend(module.layer_idx, query[0], key[0], value[0], scaling, sliding_window, softcap)
    return output[None], None


def register() -> None:
    """Makes it known to transformers. Harmless when repeated."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)


def _context(rows: list[int], plan: StepPlan, row_places: list[Any]) -> RowContext:
    longest = max(len(row_places[row]) for row in rows)
    places = np.zeros((len(rows), longest), np.int64)
    for number, row in enumerate(rows):
        places[number, : len(row_places[row])] = row_places[row]
        places[number, len(row_places[row]) :] = row_places[row][0]  # masked, but never memory that nobody wrote
    begins = plan.subsequence_begins
    tokens = np.stack([np.arange(begins[row], begins[row + 1]) for row in rows]).astype(np.int64)
    return RowContext(
        torch.from_numpy(tokens),
        torch.from_numpy(places),
        torch.from_numpy(plan.past_lens[rows].astype(np.int64)),
        torch.tensor([len(row_places[row]) for row in rows]),
    )


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """Attention whose scores are bounded, as Gemma 2 has it."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = (torch.tanh(scores / softcap) * softcap).masked_fill(~mask, _LOWEST)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value
