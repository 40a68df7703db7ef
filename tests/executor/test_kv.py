"""Block accounting: nothing is lost, held twice, or promised twice, whatever the order of events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import PoolExhausted
from headrace.executor.engines.protocol import Int32
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import HOLD_S, BlockPool, Reservation
from headrace.executor.kv.integrity import IntegrityError
from headrace.executor.kv.prefix_cache import PrefixCache


class Memory:
    """Memory that fails when it is told to, or when it is used wrongly."""

    def __init__(self, num_blocks: int, extent_blocks: int) -> None:
        self.num_blocks, self.extent_blocks = num_blocks, extent_blocks
        self.mapped: set[int] = set()
        self.fails = False

    def map_blocks(self, first: int, count: int) -> None:
        if self.fails:
            raise PoolExhausted("no memory")
        blocks = set(range(first, first + count))
        assert first % self.extent_blocks == 0
        assert count == min(self.extent_blocks, self.num_blocks - first)
        assert not blocks & self.mapped
        self.mapped |= blocks

    def unmap_blocks(self, blocks: Int32) -> None:
        gone = set(blocks.tolist())
        assert gone <= self.mapped
        assert len(gone) == len(blocks)
        self.mapped -= gone


class Blocks(RuleBasedStateMachine):
    """Random events against a model that counts holders by hand; `content` is what each published block stands for."""

    @initialize(num_blocks=st.integers(1, 12), extent_blocks=st.integers(1, 4), cached=st.booleans())
    def begin(self, num_blocks: int, extent_blocks: int, cached: bool) -> None:
        self.memory = Memory(num_blocks, extent_blocks)
        self.cache = PrefixCache(b"", idle_blocks=2) if cached else None
        self.pool = BlockPool(num_blocks, 4, extent_blocks=extent_blocks, memory=self.memory, cache=self.cache)
        self.reservations: list[Reservation] = []
        self.promised: list[int] = []
        self.holders: dict[int, int] = {}
        self.content: dict[int, bytes] = {}
        self.now = 0.0

    @rule(count=st.integers(0, 6))
    def reserve(self, count: int) -> None:
        if len(self.holders) + sum(self.promised) + count > self.pool.num_blocks:
            with pytest.raises(PoolExhausted):
                self.pool.reserve(count)
        else:
            self.reservations.append(self.pool.reserve(count))
            self.promised.append(count)

    @precondition(lambda self: self.reservations)
    @rule(data=st.data(), fails=st.booleans())
    def take(self, data: st.DataObject, fails: bool) -> None:
        which = data.draw(st.integers(0, len(self.reservations) - 1))
        if not self.promised[which]:
            with pytest.raises(PoolExhausted):
                self.reservations[which].take()
            return
        self.memory.fails = fails
        try:
            block = self.reservations[which].take()
        except PoolExhausted:
            assert fails
            assert self.memory.mapped <= self.holders.keys(), "there was mapped memory to be had"
            return
        finally:
            self.memory.fails = False
        assert block not in self.holders
        assert 0 <= block < self.pool.num_blocks
        self.holders[block] = 1
        self.promised[which] -= 1
        self.content.pop(block, None)

    @precondition(lambda self: self.cache and self.holders)
    @rule(data=st.data(), name=st.sampled_from([b"one", b"two", b"three", b"four"]))
    def publish(self, data: st.DataObject, name: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        if block not in self.content:
            known = self.pool.cache.find([name])
            self.pool.publish(block, name, (len(name),))
            if not known:
                self.content[block] = name

    @precondition(lambda self: self.cache and self.reservations)
    @rule(data=st.data(), name=st.sampled_from([b"one", b"two", b"three", b"four"]))
    def hit(self, data: st.DataObject, name: bytes) -> None:
        which = data.draw(st.integers(0, len(self.reservations) - 1))
        blocks = self.pool.cache.find([name])
        if not blocks:
            return
        (block,) = blocks
        assert self.content[block] == name
        costs = self.pool.held_by_nobody(blocks)
        assert costs == (block not in self.holders)
        if costs > self.promised[which]:
            with pytest.raises(PoolExhausted):
                self.reservations[which].hold(block)
            return
        self.reservations[which].hold(block)
        self.promised[which] -= costs
        self.holders[block] = self.holders.get(block, 0) + 1

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        which = data.draw(st.integers(0, len(self.reservations) - 1))
        self.reservations[which].release()
        self.promised[which] = 0

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.share(block)
        self.holders[block] += 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.holders[block] -= 1
        assert self.pool.drop(block) == (self.holders[block] == 0)
        if not self.holders[block]:
            del self.holders[block]

    # sums of these are exact: a rounded clock would be wrong by itself
    @rule(seconds=st.sampled_from([0.0, 0.375, HOLD_S]), idle=st.booleans())
    def give_back(self, seconds: float, idle: bool) -> None:
        self.now += seconds
        due_s = self.pool.give_back(self.now, idle=idle)
        assert due_s is None or 0 < due_s <= HOLD_S
        if idle:
            assert self.pool.num_cached <= 2
        if due_s is None:
            used = {block // self.memory.extent_blocks for block in self.used()}
            assert {block // self.memory.extent_blocks for block in self.memory.mapped} == used

    def used(self) -> set[int]:
        kept = {block for block in range(self.pool.num_blocks) if self.cache and self.cache.is_idle(block)}
        return kept | self.holders.keys()

    @invariant()
    def counts_agree(self) -> None:
        pool, state = self.pool, self.pool.state()
        pool.check()
        assert pool.num_in_use == state.num_held == len(self.holders)
        assert pool.num_free + pool.num_in_use == pool.num_blocks
        assert pool.num_reserved == sum(self.promised)
        assert pool.num_available == pool.num_free - pool.num_reserved >= 0
        assert all(pool.references(block) == count for block, count in self.holders.items())
        assert self.used() <= self.memory.mapped
        assert state.num_mapped == len(self.memory.mapped)
        assert state.num_used == len(self.used())
        if self.cache:
            assert {block for block in self.content if self.cache.knows(block)} >= self.used() & self.content.keys()


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class Tables(RuleBasedStateMachine):
    """Tables that grow, fork and leave; `content` stands for the KV: what each block's places hold."""

    @initialize()
    def begin(self) -> None:
        self.pool = BlockPool(24, 4)
        self.content = [[""] * 4 for _ in range(24)]
        self.tables: list[tuple[BlockTable, list[str]]] = []
        self.count = 0

    def write(self, table: BlockTable, known: list[str], num_tokens: int) -> None:
        table.ensure(len(known) + num_tokens)
        for _ in range(num_tokens):
            self.count += 1
            self.content[int(table.blocks[len(known) // 4])][len(known) % 4] = str(self.count)
            known.append(str(self.count))

    def copy_block(self, source: int, target: int) -> None:
        self.content[target] = list(self.content[source])

    @rule(num_tokens=st.integers(0, 20))
    def start(self, num_tokens: int) -> None:
        blocks = self.pool.blocks_for(num_tokens)
        if blocks <= self.pool.num_available:
            table, known = BlockTable(self.pool, self.pool.reserve(blocks)), list[str]()
            self.write(table, known, num_tokens // 2)
            self.tables.append((table, known))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_tokens=st.integers(0, 6))
    def grow(self, data: st.DataObject, num_tokens: int) -> None:
        table, known = data.draw(st.sampled_from(self.tables))
        try:
            self.write(table, known, num_tokens)
        except PoolExhausted:
            assert table.capacity_tokens < len(known) + num_tokens

    @precondition(lambda self: self.tables and self.pool.num_available >= 4)
    @rule(data=st.data(), extra=st.integers(1, 3))
    def fork(self, data: st.DataObject, extra: int) -> None:
        table, known = data.draw(st.sampled_from(self.tables))
        child = table.fork(len(known), self.pool.reserve(1 + extra), self.copy_block)
        self.tables.append((child, list(known)))
        self.write(child, self.tables[-1][1], 2)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        table, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        table.release()
        table.release()
        assert not len(table.blocks)

    @invariant()
    def everyone_reads_what_it_wrote(self) -> None:
        self.pool.check()
        for table, known in self.tables:
            read = [token for block in table.blocks.tolist() for token in self.content[block]]
            assert read[: len(known)] == known
            assert table.capacity_tokens == 4 * len(table.blocks) >= len(known)
        assert self.pool.num_in_use == len({block for table, _ in self.tables for block in table.blocks.tolist()})

    def teardown(self) -> None:
        for table, _ in getattr(self, "tables", []):
            table.release()
        if hasattr(self, "pool"):
            assert self.pool.num_available == self.pool.num_blocks


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_refusal_names_the_numbers() -> None:
    pool = BlockPool(4, 4)
    with pool.reserve(3) as reservation:
        reservation.take()
        with pytest.raises(PoolExhausted, match=r"2 KV blocks wanted, 1 of 4 available \(1 in use, 2 promised\)"):
            pool.reserve(2)
    assert pool.num_available == 3


def test_a_fork_shares_full_blocks_and_copies_the_rest() -> None:
    pool, copies = BlockPool(8, 4), list[tuple[int, int]]()
    table = BlockTable(pool, pool.reserve(3))
    table.ensure(10)
    child = table.fork(10, pool.reserve(1), lambda source, target: copies.append((source, target)))
    assert child.blocks[:2].tolist() == table.blocks[:2].tolist()
    assert copies == [(table.blocks[2], child.blocks[2])]
    assert pool.num_in_use == 4
    even = table.fork(8, pool.reserve(0), lambda source, target: copies.append((source, target)))
    assert len(copies) == 1
    assert [pool.references(block) for block in even.blocks.tolist()] == [3, 3]


def test_a_fork_that_fails_leaves_nothing_behind() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool, pool.reserve(2))
    table.ensure(6)

    def copy_fails(source: int, target: int) -> None:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError):
        table.fork(6, pool.reserve(2), copy_fails)
    with pytest.raises(PoolExhausted):
        table.fork(6, pool.reserve(0), copy_fails)
    with pytest.raises(ValueError, match="9 tokens"):
        table.fork(9, pool.reserve(0), copy_fails)
    assert (pool.num_in_use, pool.num_reserved) == (2, 0)
    pool.check()


def test_a_large_table_keeps_its_order() -> None:
    pool = BlockPool(100, 2)
    with BlockTable(pool, pool.reserve(100)) as table:
        for num_tokens in range(1, 201):
            table.ensure(num_tokens)
            assert len(table.blocks) == pool.blocks_for(num_tokens)
        assert sorted(table.blocks.tolist()) == list(range(100))
    assert pool.num_available == 100


def test_dropping_or_sharing_a_free_block_is_a_bug() -> None:
    pool = BlockPool(2, 4)
    with pytest.raises(IntegrityError):
        pool.drop(0)
    with pytest.raises(IntegrityError):
        pool.share(1)


def test_check_finds_broken_books() -> None:
    for breaks in (
        lambda pool: pool._extents.give(0, 0.0),
        lambda pool: pool._references.__setitem__(3, 1),
        lambda pool: pool._return_reserved(1),
        lambda pool: pool.cache._entries.popitem(),
    ):
        pool = BlockPool(4, 4, cache=PrefixCache(b""))
        block = pool.reserve(1).take()
        pool.publish(block, b"one")
        pool.check()
        breaks(pool)
        with pytest.raises(IntegrityError):
            pool.check()


def test_the_least_lately_used_goes_first_and_its_end_before_its_beginning() -> None:
    pool = BlockPool(4, 4, cache=PrefixCache(b""))
    table = BlockTable(pool, pool.reserve(3))
    table.ensure(12)
    for digest in (b"a", b"ab", b"abc"):
        table.publish(digest, ())
    table.release()
    assert pool.num_available == 4
    with pool.reserve(2) as reservation:
        reservation.take()
        assert len(pool.cache.find([b"a", b"ab", b"abc"])) == 3, "a free block was there"
        reservation.take()
        assert len(pool.cache.find([b"a", b"ab", b"abc"])) == 2
    pool.check()


def test_what_is_promised_is_not_given_to_who_finds_it() -> None:
    pool = BlockPool(2, 4, cache=PrefixCache(b""))
    table = BlockTable(pool, pool.reserve(1))
    table.ensure(4)
    table.publish(b"a", ())
    table.release()
    promise = pool.reserve(2)
    (block,) = pool.cache.find([b"a"])
    assert pool.held_by_nobody([block]) == 1
    with pytest.raises(PoolExhausted):
        pool.reserve(1)
    assert {promise.take(), promise.take()} == {0, 1}
    assert pool.cache.find([b"a"]) == []


def test_memory_comes_and_goes_by_extents_and_fills_those_in_use_first() -> None:
    memory = Memory(8, 4)
    pool = BlockPool(8, 4, extent_blocks=4, memory=memory)
    with pool.reserve(8) as reservation:
        blocks = [reservation.take() for _ in range(5)]
        assert len(memory.mapped) == 8
        assert pool.state().fragmentation == pytest.approx(3 / 8)
        for block in blocks[1:]:
            pool.drop(block)
        assert reservation.take() // 4 == blocks[0] // 4, "the extent in use has room"
    assert pool.give_back(HOLD_S / 2) == HOLD_S / 2
    assert len(memory.mapped) == 8, "steady load may want it again"
    assert pool.give_back(HOLD_S) is None
    assert len(memory.mapped) == 4


def test_memory_goes_at_the_moment_that_was_named() -> None:
    """0.4 + 1.0 is 1.4 in floating point, but 1.4 - 1.0 is less than 0.4."""
    pool = BlockPool(1, 4, memory=Memory(1, 1))
    pool.give_back(0.4)
    with pool.reserve(1) as promise:
        pool.drop(promise.take())
    assert pool.give_back(0.4) == pytest.approx(HOLD_S)
    assert pool.give_back(1.4) is None
