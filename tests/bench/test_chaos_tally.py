"""What counts as lost, twice and an error in `headrace bench chaos`."""

from dataclasses import replace

from headrace.benchmarks.lab import OUTPUT_TOKENS
from headrace.benchmarks.scenarios.chaos import Call, Kill, tally

WHOLE = Call((1, 2), 9.0, 11.0, tuple(range(OUTPUT_TOKENS)))
KILLS = [Kill("executor", 10.0, 12.0), Kill("gateway", 20.0, 22.0)]


def broken(asked_s: float, ended_s: float) -> Call:
    return replace(WHOLE, asked_s=asked_s, ended_s=ended_s, token_ids=(), error="UNAVAILABLE", unavailable=True)


def test_only_a_killed_gateway_excuses_an_error() -> None:
    calls = [WHOLE, broken(9.0, 11.0), broken(19.0, 20.5), broken(21.0, 21.1), broken(23.0, 24.0)]
    found = tally(KILLS, calls, [], [])
    assert (found.whole, found.cut, found.errors, found.lost) == (1, 2, 2, 0)


def test_an_answer_that_ends_short_is_lost() -> None:
    assert tally(KILLS, [replace(WHOLE, token_ids=(0, 1))], [], []).lost == 1


def test_an_answer_that_differs_in_peace_has_a_seam() -> None:
    again = replace(WHOLE, token_ids=(5,) * OUTPUT_TOKENS)
    assert tally(KILLS, [WHOLE], [WHOLE], [again]).twice == 1
    assert tally(KILLS, [WHOLE], [WHOLE], [WHOLE]).twice == 0
    longer = replace(WHOLE, token_ids=(*WHOLE.token_ids, 3))
    assert tally(KILLS, [longer], [longer], [WHOLE]).twice == 1
