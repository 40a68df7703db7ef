"""What the scheduler knows of caches: bounded, harmless when wrong, gone with its executor."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.scheduler.policy.prefix_index import PrefixIndex


def test_the_longest_come_first_and_only_so_many() -> None:
    index = PrefixIndex()
    for number in range(20):
        index.add(f"e{number}", range(number + 1))
    assert index.longest([0, 1, 2, 3, 99, 4], most=2) == {"e3": 4, "e4": 4}
    assert index.longest(range(20), most=3) == {"e19": 20, "e18": 19, "e17": 18}
    assert index.longest([99]) == {}
    assert index.longest([]) == {}


def test_an_executor_keeps_what_it_told_of_last() -> None:
    index = PrefixIndex(most_prefixes=3)
    index.add("e", [1, 2, 3])
    index.add("e", [1, 4])
    assert [bool(index.longest([prefix])) for prefix in (1, 2, 3, 4)] == [True, False, True, True]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "forget"]),
            st.sampled_from("abc"),
            st.lists(st.integers(0, 9), max_size=6),
        ),
        max_size=40,
    )
)
def test_it_knows_what_was_told_and_nothing_of_those_forgotten(events: list[tuple[str, str, list[int]]]) -> None:
    index, known = PrefixIndex(), {name: set[int]() for name in "abc"}
    for event, name, prefixes in events:
        if event == "add":
            index.add(name, prefixes)
            known[name] |= set(prefixes)
        elif event == "remove":
            index.remove(name, prefixes)
            known[name] -= set(prefixes)
        else:
            index.forget(name)
            known[name] = set()
    for prefix in range(10):
        assert index.longest([prefix]).keys() == {name for name in "abc" if prefix in known[name]}
    for name in "abc":
        index.forget(name)
    assert not index
    assert not index._of
