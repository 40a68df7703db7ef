"""The rules of places: whoever is locked stays, the one used least lately goes, and what comes early is worth it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.executor.experts.residency import Residency, choose_ahead

EXPERT = st.integers(0, 11)


def test_the_least_lately_used_goes() -> None:
    residency = Residency(2)
    residency.place(4)
    residency.place(7)
    assert residency.experts == (4, 7)
    residency.touch(4)
    placed = residency.place(9)
    assert placed is not None
    assert (placed.evicted, residency.experts) == (7, (4, 9))


def test_all_locked_means_no_place() -> None:
    residency = Residency(1)
    residency.place(3)
    residency.lock(3)
    residency.lock(3)
    residency.unlock(3)
    assert residency.place(5) is None
    residency.unlock(3)
    placed = residency.place(5)
    assert placed is not None
    assert placed.evicted == 3


def test_misuse_is_told() -> None:
    residency = Residency(1)
    residency.place(3)
    residency.lock(3)
    with pytest.raises(ValueError, match="has a place"):
        residency.place(3)
    with pytest.raises(ValueError, match="may not go"):
        residency.place(5, instead=3)
    with pytest.raises(KeyError):
        residency.lock(5)
    with pytest.raises(KeyError):
        residency.unlock(5)
    with pytest.raises(ValueError, match="0 places"):
        Residency(0)


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from(("place", "lock", "unlock", "touch")), EXPERT)))
def test_any_history_keeps_places_apart(num_slots: int, acts: list[tuple[str, int]]) -> None:
    residency, locks = Residency(num_slots), dict[int, int]()
    for act, expert in acts:
        if act == "place" and expert not in residency:
            before, first = residency.experts, residency.evictable[:1]
            placed = residency.place(expert)
            if placed is None:
                assert len(before) == num_slots
                assert set(before) == set(locks)
            elif placed.evicted is not None:
                assert len(before) == num_slots, "a free place is taken first"
                assert (placed.evicted,) == first
                assert placed.evicted not in locks
        elif act == "lock" and expert in residency:
            residency.lock(expert)
            locks[expert] = locks.get(expert, 0) + 1
        elif act == "unlock" and expert in locks:
            residency.unlock(expert)
            locks[expert] -= 1
            if not locks[expert]:
                del locks[expert]
        elif act == "touch" and expert in residency:
            residency.touch(expert)
            assert residency.experts[-1] == expert
        slots = [residency.slot(each) for each in residency.experts]
        assert len(set(slots)) == len(slots) <= num_slots
        assert all(0 <= slot < num_slots for slot in slots)
        assert set(locks) <= set(residency.experts)


@given(
    st.lists(st.floats(0, 1, width=32), min_size=12, max_size=12),
    st.lists(EXPERT, unique=True, max_size=6),
    st.sets(EXPERT),
    st.integers(0, 3),
    st.integers(0, 4),
)
def test_what_comes_early_is_worth_it(
    scores: list[float], resident: list[int], locked: set[int], num_free: int, most: int
) -> None:
    asked = np.array(scores, np.float32)
    evictable = [expert for expert in resident if expert not in locked]
    chosen = choose_ahead(asked, resident, evictable, num_free, most)
    coming, leaving = [each.expert for each in chosen], [each.instead for each in chosen if each.instead is not None]
    assert len(chosen) <= most
    assert not set(coming) & set(resident)
    assert len(set(coming)) == len(coming)
    assert set(leaving) <= set(evictable)
    assert len(set(leaving)) == len(leaving)
    assert sum(each.instead is None for each in chosen) <= num_free
    assert not leaving or len(chosen) - len(leaving) == num_free, "free places go first"
    assert all(asked[each.expert] > 2 * asked[each.instead] for each in chosen if each.instead is not None)
    left = [expert for expert in range(len(asked)) if expert not in resident and expert not in coming]
    assert all(asked[each] >= asked[other] for each in coming for other in left), "the likeliest come first"
