"""Prompts and the prefix cache: what a new one finds there, and which of a running one's blocks others may find.

Only blocks full of prompt are kept unless the cache wants answers too: a prefill computes those bit for bit again,
whereas an answer's tokens went in one by one, by another kernel.
"""

from headrace.chassis.config import ExecutorSettings
from headrace.core.model import ModelInfo
from headrace.core.prefix import PREFIX_TOKENS, chain, chained, prefix_hashes, root
from headrace.executor.engines.protocol import EngineSpec
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.sequence import Job, Sequence


def prefix_cache(settings: ExecutorSettings, model: ModelInfo, spec: EngineSpec) -> PrefixCache | None:
    """The cache as set; None where it is off. Another model, precision or layout of KV shares nothing with it."""
    if not settings.prefix_cache:
        return None
    seed = f"{model.digest} {spec.name} {int(spec.precision)} {spec.kv_bytes_per_block} {spec.block_tokens} "
    idle_blocks = settings.idle_cache_bytes // spec.kv_bytes_per_block
    return PrefixCache(seed.encode(), model.name, answers=settings.cache_answers, idle_blocks=idle_blocks)


def prompt_digests(pool: BlockPool, job: Job) -> list[bytes]:
    """Of the prompt's full blocks; none without a cache."""
    if pool.cache is None:
        return []
    tokens = job.prompt_ids.astype("<u4", copy=False).tobytes()
    return list(chained(pool.cache.seed + job.scope, tokens, pool.block_tokens))


def cached_blocks(pool: BlockPool, spec: EngineSpec, job: Job, digests: list[bytes]) -> list[int]:
    """The longest beginning that the cache has, in whole blocks.

    What is left of the prompt must be as long as the engine wants a chunk to be, and give at least one row of logits.
    """
    if pool.cache is None:
        return []
    most = (len(job.prompt_ids) - max(1, spec.min_chunk_tokens)) // pool.block_tokens
    return pool.cache.find(digests[: max(0, most)])


def publish(pool: BlockPool, sequence: Sequence) -> None:
    """Lets others find the sequence's blocks that have become full."""
    cache, table, block_tokens = pool.cache, sequence.table, pool.block_tokens
    if cache is None:
        return
    known = sequence.past if cache.answers else min(sequence.past, len(sequence.job.prompt_ids))
    while (end := (table.num_published + 1) * block_tokens) <= known:
        place = table.num_published
        if place == len(sequence.digests):
            tokens = sequence.token_ids[end - block_tokens : end].astype("<u4").tobytes()
            sequence.digests.append(
                chain(sequence.digests[-1] if place else root(cache.seed + sequence.job.scope), tokens)
            )
        table.publish(sequence.digests[place], _prefixes(cache.model, sequence, end - block_tokens, end))


def _prefixes(model: str, sequence: Sequence, begin: int, end: int) -> tuple[int, ...]:
    """What the scheduler calls the beginnings that end within the block."""
    if sequence.prefixes is None:
        tokens = sequence.job.prompt_ids.astype("<u4", copy=False).tobytes()
        sequence.prefixes = prefix_hashes(model, tokens)
    return sequence.prefixes[begin // PREFIX_TOKENS : end // PREFIX_TOKENS]
