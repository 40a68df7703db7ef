"""What every engine promises, whatever it runs on. An engine that passes can stand under the step loop."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.executor.engines.protocol import Engine

ANSWER_TOKENS = 6


def prompts(count: int, seed: int = 0, least: int = 5, most: int = 90) -> list[list[int]]:
    """Prompts of bytes, of mixed lengths: ids below 256 are in every vocabulary."""
    rng = np.random.default_rng(seed)
    return [rng.integers(32, 127, length).tolist() for length in rng.integers(least, most, count)]


def test_spec_is_sane(engine: Engine) -> None:
    spec = engine.spec
    assert spec.name
    assert 1 <= spec.num_candidates <= spec.vocab_size
    assert spec.block_tokens >= 1
    assert spec.num_blocks > spec.min_rows >= 1
    assert spec.min_chunk_tokens >= 1
    assert spec.kv_bytes_per_block >= 1
    assert spec.context_tokens >= 128


def test_output_has_a_row_for_each_wanted_token(driver: Any) -> None:
    runs = [driver.start(prompt, ANSWER_TOKENS) for prompt in prompts(3)]
    driver.prefill(runs)
    for run in runs:
        ids, values = run.candidates[0]
        assert run.rows[0].shape == (driver.spec.vocab_size,)
        assert run.rows[0].dtype == np.float32
        assert np.isfinite(run.rows[0]).all()
        assert ids.shape == values.shape == (driver.spec.num_candidates,)
        assert ids.dtype == np.int32


def test_candidates_are_the_rows_best_in_order(driver: Any) -> None:
    runs = [driver.start(prompt, 12) for prompt in prompts(4, seed=1)]
    driver.greedy(runs, 12)
    for run in runs:
        for row, (ids, values) in zip(run.rows, run.candidates, strict=True):
            order = np.argsort(-row, kind="stable")[: len(ids)]  # equal logits by lower id
            assert ids.tolist() == order.tolist()
            assert np.array_equal(values, row[order])
        for row, (token, logit) in zip(run.rows, run.best, strict=True):
            assert (token, logit) == (np.argmax(row), row.max())


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_company_changes_nothing(driver: Any, size: int) -> None:
    alone = [driver.start(prompt, ANSWER_TOKENS) for prompt in prompts(2, seed=size)]
    for run in alone:
        driver.greedy([run], ANSWER_TOKENS)
    together = [driver.start(run.tokens[: -ANSWER_TOKENS + 1], ANSWER_TOKENS) for run in alone]
    mates = [driver.start(prompt, ANSWER_TOKENS) for prompt in prompts(size - 2, seed=100 + size)]
    driver.greedy([*together[:1], *mates, *together[1:]], ANSWER_TOKENS)
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        driver.same(one.rows, other.rows)


def test_a_prefill_beside_decodes_changes_nothing(driver: Any) -> None:
    first, late = prompts(2, seed=3, least=20)
    alone, joined = driver.start(late, ANSWER_TOKENS), driver.start(late, ANSWER_TOKENS)
    driver.greedy([alone], ANSWER_TOKENS)
    decoded, mate = driver.start(first, 2 * ANSWER_TOKENS), driver.start(first, 2 * ANSWER_TOKENS)
    driver.greedy([decoded], 2 * ANSWER_TOKENS)
    driver.greedy([mate], 3)
    for _ in range(ANSWER_TOKENS):
        mate.tokens.append(int(mate.rows[-1].argmax()))
        if joined.rows:
            joined.tokens.append(int(joined.rows[-1].argmax()))
        driver.step([mate, joined], [1, len(joined.tokens) - joined.past])
    driver.same(alone.rows, joined.rows)
    driver.same(decoded.rows[: len(mate.rows)], mate.rows)


@pytest.mark.parametrize("chunk", [1, 7, 32, 33])
def test_a_prompt_in_chunks_is_the_prompt(driver: Any, chunk: int) -> None:
    """Chunks down to the least that the spec allows, and the least rest after them."""
    least = driver.spec.min_chunk_tokens
    chunk = max(chunk, least)
    length = (80 // chunk) * chunk + least
    (prompt,) = prompts(1, seed=4, least=length, most=length + 1)
    whole, parts = driver.start(prompt, ANSWER_TOKENS), driver.start(prompt, ANSWER_TOKENS)
    driver.greedy([whole], ANSWER_TOKENS)
    while len(prompt) - parts.past > least:
        driver.step([parts], [chunk])
    parts.rows.clear()
    driver.greedy([parts], ANSWER_TOKENS)
    assert parts.tokens == whole.tokens
    driver.same(whole.rows, parts.rows)


def test_known_answer_tokens_replay_as_rows_of_one_token(driver: Any) -> None:
    (prompt,) = prompts(1, seed=5)
    whole, replay = driver.start(prompt, 9), driver.start(prompt, 9)
    driver.greedy([whole], 9)
    driver.prefill([replay])
    replay.tokens = list(whole.tokens)
    # all at once: each row sees those before it through the one block table
    known = [type(replay)(replay.tokens, replay.blocks, past) for past in range(len(prompt), len(replay.tokens))]
    driver.step(known, [1] * len(known))
    driver.same(whole.rows, [*replay.rows, *(run.rows[0] for run in known)])


def test_a_copied_block_is_its_source(driver: Any) -> None:
    (prompt,) = prompts(1, seed=6, least=driver.spec.block_tokens + 2)
    source = driver.start(prompt, ANSWER_TOKENS)
    driver.prefill([source])
    copy = driver.start(prompt, ANSWER_TOKENS)
    for one, other in zip(source.blocks, copy.blocks, strict=True):
        driver.engine.copy_block(one, other)
    copy.past, copy.rows = source.past, list(source.rows)
    for run in (source, copy):
        for _ in range(ANSWER_TOKENS - 1):
            run.tokens.append(int(run.rows[-1].argmax()))
            driver.step([run], [1])
    driver.same(source.rows, copy.rows)


def test_a_copy_and_its_source_part(driver: Any) -> None:
    (prompt,) = prompts(1, seed=7)
    source, copy = driver.start(prompt, 2), driver.start(prompt, 2)
    driver.prefill([source])
    for one, other in zip(source.blocks, copy.blocks, strict=True):
        driver.engine.copy_block(one, other)
    copy.past = source.past
    copy.tokens.append(65)
    driver.step([copy], [1])  # must not be seen by the source
    source.tokens.append(66)
    driver.step([source], [1])
    fresh = driver.start([*prompt], 2)
    driver.prefill([fresh])
    fresh.tokens.append(66)
    driver.step([fresh], [1])
    driver.same(fresh.rows, source.rows)
    assert not np.array_equal(copy.rows[-1], source.rows[-1])


def test_released_blocks_serve_again(driver: Any) -> None:
    (prompt,) = prompts(1, seed=8)
    before = driver.start(prompt, ANSWER_TOKENS)
    bystander = driver.start(prompt, ANSWER_TOKENS)
    driver.greedy([before], ANSWER_TOKENS)
    driver.prefill([bystander])
    driver.engine.release_blocks(np.array(before.blocks, np.int32))
    driver.engine.release_blocks(np.array([], np.int32))
    after = type(before)(list(prompt), before.blocks)
    driver.greedy([after], ANSWER_TOKENS)
    driver.same(before.rows, after.rows)
    for _ in range(ANSWER_TOKENS - 1):
        bystander.tokens.append(int(bystander.rows[-1].argmax()))
        driver.step([bystander], [1])
    driver.same(before.rows, bystander.rows)


def test_the_order_of_blocks_does_not_matter(driver: Any) -> None:
    (prompt,) = prompts(1, seed=9)
    one = driver.start(prompt, ANSWER_TOKENS)
    other = driver.start(prompt, ANSWER_TOKENS)
    other.blocks.sort()
    driver.greedy([one], ANSWER_TOKENS)
    driver.greedy([other], ANSWER_TOKENS)
    driver.same(one.rows, other.rows)


def test_close_twice_is_harmless(load: Callable[[], Engine]) -> None:
    engine = load()
    engine.close()
    engine.close()
