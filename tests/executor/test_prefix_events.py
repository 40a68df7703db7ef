"""What the step loop does with the cache: who fails where memory does, and what the scheduler is told."""

import numpy as np

from headrace.core.errors import PoolExhausted
from headrace.core.model import ModelInfo
from headrace.core.prefix import PREFIX_TOKENS, prefix_hashes
from headrace.core.request import FinishReason, Sampling
from headrace.executor.engines.reference import ReferenceEngine, expected_answer
from headrace.executor.kv.blocks import BlockPool
from headrace.executor.kv.prefix_cache import PrefixCache
from headrace.executor.residents import Residents
from headrace.executor.sequence import Job
from headrace.executor.step_result import StepResult
from headrace.executor.stepper import Stepper

INFO = ModelInfo("reference", "decoder", "", 4096, 512, (256,))


class FailingMemory:
    """Maps so many blocks and no more."""

    def __init__(self, most: int) -> None:
        self.left = most

    def map_blocks(self, first: int, count: int) -> None:
        if self.left < count:
            raise PoolExhausted("no memory")
        self.left -= count

    def unmap_blocks(self, blocks) -> None:
        self.left += len(blocks)


class Loop:
    def __init__(self, cache=None, memory=None, num_blocks=256) -> None:
        engine = ReferenceEngine(INFO, num_blocks)
        self.pool = BlockPool(num_blocks, engine.spec.block_tokens, memory=memory, cache=cache)
        self.residents = Residents(engine.spec, self.pool, 16, INFO.eos_token_ids)
        self.stepper = Stepper(engine, self.residents, self.pool, INFO.eos_token_ids, 64)
        self.deltas = []

    def accept(self, name: str, prompt: list[int], **sampling) -> None:
        job = Job(1, name, np.array(prompt, np.uint32), Sampling(ignore_eos=True, **sampling))
        self.residents.accept(job)

    def run(self) -> None:
        while self.residents.running:
            result = StepResult()
            self.stepper.step(result)
            self.deltas += result.deltas

    def answer(self, name: str) -> list[int]:
        return [each.choice.token_id for each in self.deltas if each.job.request_id == name and each.choice]

    def errors(self) -> dict[str, type]:
        return {each.job.request_id: type(each.error) for each in self.deltas if each.error}


def test_a_mapping_that_fails_ends_its_request_and_no_other() -> None:
    """Each takes a block of four for its prompt; then one wants a second, and there is none."""
    loop = Loop(memory=FailingMemory(1 + 2))
    loop.accept("long", [65, 66, 67], max_tokens=9)
    loop.accept("short", [70, 71], max_tokens=2)
    loop.run()
    assert loop.errors() == {"long": PoolExhausted}
    assert loop.answer("short") == expected_answer([70, 71], 2)
    assert [each.finish for each in loop.deltas if each.error] == [FinishReason.NONE]
    assert loop.pool.num_in_use == 1
    assert loop.pool.num_reserved == 0
    loop.pool.check()


def test_answers_that_cannot_be_forked_end_together() -> None:
    loop = Loop(memory=FailingMemory(1 + 2))
    loop.accept("many", [65, 66, 67, 68, 69], n=3, max_tokens=3)
    loop.run()
    assert loop.errors() == {"many": PoolExhausted}
    assert loop.pool.num_in_use == 1
    assert loop.pool.num_reserved == 0


def test_where_mapping_fails_the_cache_gives_what_it_keeps() -> None:
    loop = Loop(PrefixCache(b""), FailingMemory(1 + 4))
    for name, first in (("one", 65), ("two", 75), ("three", 85)):
        loop.accept(name, list(range(first, first + 9)), max_tokens=4)
        loop.run()
    assert not loop.errors()
    assert loop.answer("three") == expected_answer(list(range(85, 94)), 4)


def test_the_scheduler_hears_of_beginnings_that_come_and_go() -> None:
    cache = PrefixCache(b"", "m")
    loop = Loop(cache, num_blocks=64)
    prompt = [32 + index % 90 for index in range(3 * PREFIX_TOKENS + 1)]
    hashes = prefix_hashes("m", np.array(prompt, "<u4").tobytes())
    assert len(hashes) == 3
    loop.accept("one", prompt, max_tokens=1)
    loop.run()
    assert cache.take_events(2) == (list(hashes[:2]), [])
    assert cache.take_events(100) == ([hashes[2]], [])
    loop.accept("two", prompt, max_tokens=1)
    assert cache.take_events(100) == (list(hashes), []), "a scheduler that is new hears of what is found"
    loop.run()
    loop.accept("other", [33] * 190, max_tokens=1)
    loop.run()
    assert set(cache.take_events(100)[1]) == set(hashes[1:]), "the end went first"
    cache.tell_again()
    assert hashes[0] in cache.take_events(100)[0]


def test_events_that_nobody_takes_are_bounded() -> None:
    cache = PrefixCache(b"", "m")
    for number in range(10_000):
        cache.add(number, str(number).encode(), (number,))
    added, removed = cache.take_events(100_000)
    assert len(added) < 10_000
    assert added[-1] == 9_999
    assert not removed


def test_hashes_cover_all_before_them_and_differ_by_model() -> None:
    one = np.arange(2 * PREFIX_TOKENS, dtype="<u4")
    other = one.copy()
    other[0] += 1
    assert len(set(prefix_hashes("m", one.tobytes())) | set(prefix_hashes("m", other.tobytes()))) == 4
    assert not set(prefix_hashes("m", one.tobytes())) & set(prefix_hashes("n", one.tobytes()))
    assert prefix_hashes("m", one[:-1].tobytes()) == prefix_hashes("m", one.tobytes())[:1]
