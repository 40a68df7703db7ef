"""Invariants of the step planner over random populations."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from headrace.executor.planner import chunk_tokens, plan_rows

POPULATION = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 600), st.integers(0, 3)), max_size=20)


def sequences(population):
    made = []
    for arrival, (prompt, past, priority) in enumerate(population):
        past = min(past, prompt)
        if prompt - past == 1 and prompt > 1:
            past = max(0, past - 1)  # the planner itself never leaves a rest of one
        decoding = past == prompt
        made.append(
            SimpleNamespace(
                prefilling=not decoding,
                num_pending=1 if decoding else prompt - past,
                num_prompt_pending=prompt - past,
                past=past,
                arrival=arrival,
                prompt=prompt,
                job=SimpleNamespace(priority=priority),
            )
        )
    return made


@given(POPULATION, st.integers(1, 400))
def test_every_decode_is_in_and_the_budget_holds(population, step_tokens):
    rows = plan_rows(sequences(population), step_tokens, 2)
    made = sequences(population)
    decodes = sum(not s.prefilling for s in made)
    assert sum(not row.sequence.prefilling for row in rows) == decodes
    chunks = [row.num_tokens for row in rows if row.sequence.prefilling]
    if decodes:
        assert sum(chunks) <= max(0, step_tokens - decodes)
    elif sum(chunks) > step_tokens:  # the budget is below the shortest chunk and nothing else would move
        assert len(chunks) == 1
        assert chunks[0] <= 3


@given(POPULATION, st.integers(1, 400))
def test_no_chunk_and_no_rest_is_a_single_token_of_a_longer_prompt(population, step_tokens):
    for row in plan_rows(sequences(population), step_tokens, 2):
        if row.sequence.prefilling:
            rest = row.sequence.num_pending - row.num_tokens
            assert rest != 1
            assert row.num_tokens > 1 or row.sequence.num_pending == 1
            assert row.last == (rest == 0)


@given(POPULATION, st.integers(1, 400))
def test_something_always_moves(population, step_tokens):
    made = sequences(population)
    assert bool(plan_rows(made, step_tokens, 2)) == bool(made)


@given(POPULATION, st.integers(1, 400))
def test_prefills_go_by_priority_then_arrival(population, step_tokens):
    rows = [row.sequence for row in plan_rows(sequences(population), step_tokens, 2) if row.sequence.prefilling]
    assert [(s.job.priority, s.arrival) for s in rows] == sorted((s.job.priority, s.arrival) for s in rows)


def test_chunk_leaves_no_short_rest():
    assert chunk_tokens(100, 100, 2) == 100
    assert chunk_tokens(100, 99, 2) == 98
    assert chunk_tokens(100, 1, 2) == 0
    assert chunk_tokens(1, 1, 2) == 1
    assert chunk_tokens(1, 0, 2) == 0


def replaying(prompt, past, num_tokens, priority, arrival, replayed=()):
    return SimpleNamespace(
        replayed=replayed,
        prefilling=past < prompt,
        num_pending=num_tokens - past,
        num_prompt_pending=prompt - past,
        past=past,
        arrival=arrival,
        job=SimpleNamespace(priority=priority),
    )


def test_known_tokens_are_rows_of_one_and_wait_behind_what_is_more_urgent():
    urgent = replaying(prompt=6, past=0, num_tokens=6, priority=0, arrival=3)
    replay = replaying(prompt=4, past=4, num_tokens=20, priority=3, arrival=1)
    decode = replaying(prompt=2, past=9, num_tokens=10, priority=3, arrival=2)
    rows = [(row.sequence, row.past, row.num_tokens, row.last) for row in plan_rows([replay, decode, urgent], 10, 2)]
    assert rows == [
        (decode, 9, 1, True),
        (urgent, 0, 6, True),
        *((replay, past, 1, False) for past in (4, 5, 6)),
    ]
    rows = [(row.past, row.num_tokens, row.last) for row in plan_rows([replay], 30, 2)]
    assert rows == [(past, 1, past == 19) for past in range(4, 20)]


def test_a_dropped_prompt_is_computed_without_choosing_its_next_token_anew():
    (row,) = plan_rows([replaying(prompt=8, past=0, num_tokens=12, priority=0, arrival=0)], 30, 2)
    assert (row.num_tokens, row.last) == (8, False)


def test_where_nothing_is_exact_known_tokens_are_one_chunk_but_for_further_answers():
    lone = replaying(prompt=8, past=0, num_tokens=12, priority=0, arrival=0)
    assert [(row.num_tokens, row.last) for row in plan_rows([lone], 30, 1, exact=False)] == [(12, True)]
    late = replaying(prompt=8, past=10, num_tokens=14, priority=0, arrival=0)
    assert [(row.num_tokens, row.last) for row in plan_rows([late], 30, 1, exact=False)] == [(4, True)]
    forking = replaying(prompt=8, past=0, num_tokens=12, priority=0, arrival=0, replayed=["another answer"])
    assert [(row.num_tokens, row.last) for row in plan_rows([forking], 30, 1, exact=False)] == [(8, False)]
