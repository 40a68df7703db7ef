"""What a step usually takes is told by its shape, believes faster steps soon and slower ones late."""

from headrace.executor.usual_steps import FIRST_STEPS, MOST_SHAPES, UsualSteps


def _ran(usual: UsualSteps, num_steps: int, took_s: float, num_rows: int = 4, context_tokens: int = 1000) -> float:
    """What the last of so many steps should have taken."""
    return [usual.observe(num_rows, context_tokens, took_s) for _ in range(num_steps)][-1]


def test_nothing_is_usual_at_first() -> None:
    usual = UsualSteps()
    assert [usual.observe(4, 1000, took_s) for took_s in (0.01, 0.03, 0.02)] == [0.01, 0.03, 0.02]


def test_a_device_that_became_slower_is_told_from_what_it_was() -> None:
    usual = UsualSteps()
    _ran(usual, 50, 0.01)
    assert _ran(usual, 40, 0.02) < 0.012
    assert _ran(usual, 2_000, 0.02) > 0.019  # by then it is how fast it is


def test_one_that_became_faster_is_measured_by_that_soon() -> None:
    usual = UsualSteps()
    _ran(usual, 50, 0.02)
    assert _ran(usual, 60, 0.01) < 0.0105


def test_shapes_are_told_apart_by_rows_and_context() -> None:
    usual = UsualSteps()
    _ran(usual, 50, 0.01)
    assert _ran(usual, FIRST_STEPS + 1, 0.05, num_rows=5) == 0.05
    assert _ran(usual, FIRST_STEPS + 1, 0.05, context_tokens=2000) == 0.05
    assert _ran(usual, 1, 0.05, context_tokens=1010) == 0.01


def test_as_many_shapes_as_there_may_be_are_kept() -> None:
    usual = UsualSteps()
    _ran(usual, 50, 0.01, num_rows=1)
    for num_rows in range(2, MOST_SHAPES + 2):
        usual.observe(num_rows, 1000, 0.05)
    assert usual.observe(1, 1000, 0.05) == 0.05, "the one not seen for longest has gone"
