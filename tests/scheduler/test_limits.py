"""Settings that a running scheduler takes: all faults at once, and nothing changes on a fault."""

import dataclasses

import pytest

from headrace.core.errors import InvalidRequest
from headrace.scheduler.policy.limits import LIVE, Bounds, Limits, Order, changed, live_values

LIMITS = Limits(Bounds(10, 1000), lease_s=1.0, batch_tokens=100)


def test_values_come_as_text_and_leave_as_their_types() -> None:
    new = changed(
        LIMITS, {"order": "fcfs", "batch_share": "0.25", "max_displacements": "0", "max_waiting_requests": "7"}
    )
    assert new == dataclasses.replace(
        LIMITS, bounds=Bounds(7, 1000), order=Order.FCFS, batch_share=0.25, max_displacements=0
    )
    assert isinstance(new.bounds.max_waiting_requests, int)


def test_no_change_is_the_same() -> None:
    assert changed(LIMITS, {}) == LIMITS


def test_what_is_shown_can_be_set() -> None:
    assert set(live_values(LIMITS)) == set(LIVE)
    assert changed(LIMITS, live_values(LIMITS)) == LIMITS


def test_every_fault_is_named_and_nothing_changes() -> None:
    wrong = {
        "order": "random",
        "batch_share": "2",
        "batch_floor": "much",
        "max_displacements": "1.5",
        "colour": "red",
        "longest_wait_s": "5",
    }
    before = dataclasses.replace(LIMITS)
    with pytest.raises(InvalidRequest) as caught:
        changed(LIMITS, wrong)
    message = str(caught.value)
    assert all(name in message for name in wrong if name != "longest_wait_s")
    assert message.count("; ") == 4 + message.count("no such setting; ")
    assert before == LIMITS


@pytest.mark.parametrize("name", [name for name in LIVE if name != "order"])
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e400", "", " ", "0x10", "9" * 500, "9" * 5000, "\0"])
def test_nonsense_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        changed(LIMITS, {name: text})


@pytest.mark.parametrize("name", ["lease_s", "bounds", "grace_s", "", "Order"])
def test_what_may_not_change_is_unknown(name: str) -> None:
    with pytest.raises(InvalidRequest, match="no such setting"):
        changed(LIMITS, {name: "1"})


def test_the_floor_stays_below_the_share() -> None:
    with pytest.raises(InvalidRequest, match="batch_floor"):
        changed(LIMITS, {"batch_share": "0.04"})
    with pytest.raises(InvalidRequest, match="batch_floor"):
        changed(LIMITS, {"batch_floor": "0.6"})
    assert changed(LIMITS, {"batch_floor": "0.6", "batch_share": "0.6"}).batch_floor == 0.6
