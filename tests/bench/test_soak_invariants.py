"""What a soak checks at the end: each invariant holds where it should, and says what it found where not."""

from dataclasses import replace

from headrace.benchmarks.soak.calls import Ended, Manner
from headrace.benchmarks.soak.invariants import (
    JUDGED_S,
    MAX_GROWTH_BYTES,
    MAX_GROWTH_FILES,
    WARM_S,
    Sample,
    of_calls,
    of_files,
    of_growth,
    of_levels,
    of_processes,
    of_tally,
)
from headrace.benchmarks.soak.levels import Levels
from headrace.core.errors import EngineFault, InvalidRequest
from headrace.standalone.services import Service

WHOLE = Ended(Manner.PATIENT, 1.0, 2.0, num_pieces=3)
IDLE = Levels(100.0, 50e6, 20.0, {"permits": 0.0, "leases": 1.0})


def test_every_call_has_ended_and_none_failed() -> None:
    refused = Ended(Manner.MALFORMED, 3.0, 4.0, error=InvalidRequest("no message"))
    check = of_calls(2, [WHOLE, refused], [])
    assert check.holds
    assert check.found == "2 asked = 1 finished + 0 cancelled + 1 refused + 0 cut + 0 failed"


def test_a_call_that_failed_is_told() -> None:
    check = of_calls(2, [WHOLE, replace(WHOLE, error=EngineFault("internal error"))], [])
    assert not check.holds
    assert check.found.endswith("patient from 1.0 to 2.0 s after 3 pieces: ENGINE_FAULT: internal error")


def test_a_call_without_an_end_and_a_load_without_an_answer_show_nothing() -> None:
    assert not of_calls(2, [WHOLE], []).holds
    assert not of_calls(0, [], []).holds


def test_the_scheduler_knows_where_each_submission_went() -> None:
    tally = {"submitted": 7, "finished": 4, "lost": 1, "withdrawn": 2, "displaced": 9}
    assert of_tally(tally).holds
    assert not of_tally(tally | {"submitted": 8}).holds


def test_what_is_held_is_as_before() -> None:
    before = {Service.GATEWAY: IDLE, Service.EXECUTOR: IDLE}
    assert of_levels(before, before).holds
    held = replace(IDLE, held={"permits": 3.0, "leases": 1.0})
    check = of_levels(before, {Service.GATEWAY: held})
    assert not check.holds
    assert check.found == "gateway permits 3, was 0; executor does not answer"


def samples(*points: tuple[float, Levels]) -> list[Sample]:
    return [Sample(at_s, {Service.GATEWAY: levels}) for at_s, levels in points]


def test_growth_is_of_one_process_after_its_warm_up() -> None:
    grown = replace(IDLE, own_bytes=IDLE.own_bytes + MAX_GROWTH_BYTES + 1)
    late_s = WARM_S + JUDGED_S
    memory, files = of_growth(samples((0.0, IDLE), (WARM_S, grown), (late_s, grown)))
    assert memory.holds
    assert files.holds
    memory, files = of_growth(samples((0.0, IDLE), (WARM_S, IDLE), (late_s, grown)))
    assert not memory.holds
    assert files.holds
    opened = replace(IDLE, num_files=IDLE.num_files + MAX_GROWTH_FILES + 1)
    memory, files = of_growth(samples((0.0, IDLE), (WARM_S, IDLE), (late_s, opened)))
    assert memory.holds
    assert not files.holds


def test_a_process_that_began_anew_is_another_one() -> None:
    grown = replace(IDLE, own_bytes=IDLE.own_bytes + MAX_GROWTH_BYTES + 1, started_s=200.0)
    memory, _ = of_growth(samples((0.0, IDLE), (WARM_S, IDLE), (WARM_S + JUDGED_S, grown)))
    assert memory.holds
    assert memory.found == "of 2 processes, 0 lived long enough"


def test_files_and_processes_that_are_left_are_named() -> None:
    assert of_files([]).holds
    assert of_files(["tmpabc"]).found == "tmpabc"
    assert not of_files(["tmpabc"]).holds
    assert of_processes([]).holds
    assert not of_processes([12]).holds
