"""KV in eight bits: half the memory, chunks that end where blocks do, and known tokens as chunks, not as rows."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import EngineNotReady
from headrace.core.request import Precision, Sampling
from headrace.executor.engines.openvino import OpenVinoEngine
from headrace.executor.engines.protocol import Float32, StepPlan
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.planner import plan_rows
from headrace.executor.sampler import SequenceSampler
from headrace.executor.sequence import Job
from headrace.executor.sequence import Sequence as Answer
from headrace.models.repository import ModelEntry

BLOCK = 32


@pytest.fixture(scope="module")
def eight_bits(smollm2: ModelEntry) -> Iterator[OpenVinoEngine]:
    engine = OpenVinoEngine(smollm2, kv_bytes=1 << 28, threads=2, kv_precision="u8")
    yield engine
    engine.close()


def prefill(engine: OpenVinoEngine, tokens: Sequence[int], chunks: Sequence[int], blocks: Sequence[int]) -> Float32:
    """The last token's logits; block 0 is a dummy row's."""
    past = 0
    for size in chunks:
        num_blocks = -(-(past + size) // BLOCK)
        plan = StepPlan(
            token_ids=np.array([*tokens[past : past + size], 1], np.int64),
            past_lens=np.array([past, 0], np.int32),
            subsequence_begins=np.array([0, size, size + 1], np.int32),
            block_indices=np.array([*blocks[:num_blocks], 0], np.int32),
            block_indices_begins=np.array([0, num_blocks, num_blocks + 1], np.int32),
            wanted_tokens=np.array([size - 1], np.int64),
        )
        logits: Float32 = engine.forward(plan).logits(0).copy()
        past += size
    return logits


def test_it_takes_little_more_than_half_the_memory_and_is_not_called_exact(
    eight_bits: OpenVinoEngine, smollm2: ModelEntry
) -> None:
    engine = OpenVinoEngine(smollm2, kv_bytes=1 << 28, threads=2)
    whole = engine.spec
    engine.close()
    spec = eight_bits.spec
    assert 0.5 < spec.kv_bytes_per_block / whole.kv_bytes_per_block < 0.6
    assert (spec.exact, whole.exact) == (False, True)
    assert (spec.chunk_multiple_tokens, whole.chunk_multiple_tokens) == (BLOCK, 1)
    assert spec.block_tokens == whole.block_tokens == BLOCK


def test_chunks_that_end_with_blocks_are_the_prompt_bit_for_bit(eight_bits: OpenVinoEngine) -> None:
    tokens = np.random.default_rng(5).integers(32, 127, 100).tolist()
    whole = prefill(eight_bits, tokens, [100], [1, 2, 3, 4])
    assert np.array_equal(whole, prefill(eight_bits, tokens, [32, 64, 4], [5, 6, 7, 8]))
    assert not np.array_equal(whole, prefill(eight_bits, tokens, [40, 60], [9, 10, 11, 12]))


def test_what_computes_in_float32_keeps_no_kv_in_bf16(smollm2: ModelEntry) -> None:
    with pytest.raises(EngineNotReady, match="not in bf16") as refused:
        OpenVinoEngine(smollm2.variant(Precision.FP32), kv_bytes=1 << 28, threads=2, kv_precision="bf16")
    assert refused.value.field == "executor.kv_precision"


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 60)), min_size=1, max_size=6),
    st.integers(1, 100),
)
def test_every_chunk_ends_with_a_block_or_with_what_is_known(lengths: list[tuple[int, int]], budget: int) -> None:
    pool = BlockPool(1, BLOCK)
    answers = [answer(pool, index, prompt, known) for index, (prompt, known) in enumerate(lengths)]
    for _ in range(sum(-(-sum(each) // BLOCK) for each in lengths) + len(lengths)):
        rows = plan_rows(answers, budget, 2, exact=False, chunk_multiple_tokens=BLOCK)
        assert rows
        for row in rows:
            end = row.past + row.num_tokens
            assert end == row.sequence.num_tokens or end % BLOCK == 0
            assert row.num_tokens >= min(2, row.sequence.num_tokens)
            row.sequence.past = end
        assert len({id(row.sequence) for row in rows}) == len(rows)
        answers = [each for each in answers if each.num_pending]
        if not answers:
            return
    pytest.fail("known tokens were not put in within their number of blocks")


def answer(pool: BlockPool, index: int, prompt: int, known: int) -> Answer:
    """One that is to be put in from its beginning: a prompt and `known` tokens of its answer."""
    ids = np.ones(prompt, np.uint32)
    job = Job(1, f"r{index}", ids, Sampling(max_tokens=known + 1))
    sampler = SequenceSampler(job.sampling, 0, ids, (), 512)
    tokens = np.ones(prompt + known + 1, np.int64)
    return Answer(job, 0, index, BlockTable(pool, pool.reserve(0)), sampler, tokens, prompt + known)
