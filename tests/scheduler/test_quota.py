"""NORMAL and BATCH beside each other: the share by load, and deficit round robin in tokens."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.request import QosClass
from headrace.scheduler.policy.limits import Bounds, Limits
from headrace.scheduler.policy.quota import Deficit, batch_share

LIMITS = Limits(Bounds(10, 1000), lease_s=1.0, batch_tokens=100)
loads = st.floats(0, 3)


def test_the_share_is_whole_up_to_the_quota_load_then_falls_to_the_floor() -> None:
    assert batch_share(0.0, LIMITS) == batch_share(0.7, LIMITS) == 0.5
    assert batch_share(0.85, LIMITS) == pytest.approx((0.5 + 0.05) / 2)
    assert batch_share(1.0, LIMITS) == pytest.approx(0.05)
    assert batch_share(1.7, LIMITS) == pytest.approx(0.05)


@given(loads, loads)
def test_the_share_never_rises_with_load_nor_leaves_its_bounds(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert LIMITS.batch_share >= batch_share(low, LIMITS) >= batch_share(high, LIMITS) > 0


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_long_run_token_shares_are_the_share(share: float, seed: int) -> None:
    draw = random.Random(seed)
    normal_most, batch_most = draw.choice([(50, 50), (10, 500), (500, 10)])
    deficit, tokens = Deficit(), {QosClass.NORMAL: 0.0, QosClass.BATCH: 0.0}
    costs = {QosClass.NORMAL: draw.uniform(1, normal_most), QosClass.BATCH: draw.uniform(1, batch_most)}
    while tokens[QosClass.BATCH] < 100 * batch_most:
        chosen = deficit.choose(costs[QosClass.NORMAL], costs[QosClass.BATCH], share)
        deficit.served(chosen, costs[chosen])
        tokens[chosen] += costs[chosen]
        costs[chosen] = draw.uniform(1, normal_most if chosen is QosClass.NORMAL else batch_most)
    assert tokens[QosClass.BATCH] / sum(tokens.values()) == pytest.approx(share, rel=0.02)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_the_choice_stands_until_it_is_served(normal: float, batch: float, share: float, later: float) -> None:
    deficit = Deficit()
    chosen = deficit.choose(normal, batch, share)
    assert all(deficit.choose(normal, batch, each) is chosen for each in (share, later, share))


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1000)), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_neither_holds_more_than_its_dearest_request(costs: list[tuple[float, float]], share: float) -> None:
    deficit = Deficit()
    for normal, batch in costs:
        chosen = deficit.choose(normal, batch, share)
        assert 0 <= deficit.normal <= max(each[0] for each in costs) + 1e-6
        assert 0 <= deficit.batch <= max(each[1] for each in costs) + 1e-6
        deficit.served(chosen, normal if chosen is QosClass.NORMAL else batch)


def test_nobody_saves_up_while_the_other_is_away() -> None:
    deficit = Deficit()
    deficit.choose(1.0, 1000.0, 0.5)
    deficit.clear()
    assert (deficit.normal, deficit.batch) == (0.0, 0.0)


def test_costs_of_nothing_are_served_without_end() -> None:
    assert Deficit().choose(0.0, 0.0, 0.5) is QosClass.NORMAL
