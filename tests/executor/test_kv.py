"""Block accounting: nothing is lost, held twice, or promised twice, whatever the order of events."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import PoolExhausted
from headrace.executor.kv.block_table import BlockTable
from headrace.executor.kv.blocks import BlockPool, IntegrityError, Reservation


class Blocks(RuleBasedStateMachine):
    """Random events against a model that counts holders by hand."""

    @initialize(num_blocks=st.integers(1, 12))
    def begin(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 4)
        self.reservations: list[Reservation] = []
        self.promised: list[int] = []
        self.holders: dict[int, int] = {}
        self.undrained: set[int] = set()

    @rule(count=st.integers(0, 6))
    def reserve(self, count: int) -> None:
        if len(self.holders) + sum(self.promised) + count > self.pool.num_blocks:
            with pytest.raises(PoolExhausted):
                self.pool.reserve(count)
        else:
            self.reservations.append(self.pool.reserve(count))
            self.promised.append(count)

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        which = data.draw(st.integers(0, len(self.reservations) - 1))
        if not self.promised[which]:
            with pytest.raises(PoolExhausted):
                self.reservations[which].take()
            return
        block = self.reservations[which].take()
        assert block not in self.holders
        assert 0 <= block < self.pool.num_blocks
        self.holders[block] = 1
        self.promised[which] -= 1
        self.undrained.discard(block)

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
            self.undrained.add(block)

    @rule()
    def drain(self) -> None:
        freed = self.pool.drain_freed().tolist()
        assert len(freed) == len(set(freed))
        assert set(freed) == self.undrained
        self.undrained.clear()

    @invariant()
    def counts_agree(self) -> None:
        pool = self.pool
        pool.check()
        assert pool.num_in_use == len(self.holders)
        assert pool.num_free + pool.num_in_use == pool.num_blocks
        assert pool.num_reserved == sum(self.promised)
        assert pool.num_available == pool.num_free - pool.num_reserved >= 0
        assert all(pool.references(block) == count for block, count in self.holders.items())


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


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
    pool = BlockPool(2, 4)
    pool.reserve(1).take()
    pool._free.append(pool._free[0])
    with pytest.raises(IntegrityError):
        pool.check()
