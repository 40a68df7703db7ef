"""How scenarios turn samples into figures."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.benchmarks.closed_loop import Reply, Window
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.open_loop import Outcome
from headrace.benchmarks.peers.running import Peers, differing
from headrace.benchmarks.scenarios import exact, overhead, saturate, sched, single, structured, tracing, vip
from headrace.client.values import TokenLogprob, TokenLogprobs
from headrace.core.model import ModelInfo
from headrace.models.repository import ModelEntry


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    info = ModelInfo("tiny", "decoder", "d", 512, 100, (0,))
    return Lab(tmp_path, ModelEntry(info, tmp_path, "", "", ""), print)


def windows(*tokens: int) -> list[Window]:
    return [Window(10.0, count, [Reply(0.5, 2.0, 64)]) for count in tokens]


def test_saturate_compares_medians_with_the_best_peer(lab: Lab) -> None:
    taken = {"headrace": windows(3000, 100, 2000), "vllm": windows(900, 1000, 1100), "llamacpp": windows(10, 10, 10)}
    report = saturate.report(lab, taken, Peers(missing={"openvino-genai": "left out"}))
    assert [figure.value for figure in report.figures] == [2.0, 2.0, 200.0]
    assert {row.system: row.note for row in report.rows} == {
        "headrace": "",
        "vllm": "best peer",
        "llamacpp": "",
        "openvino-genai": "left out",
    }
    assert [window["num_tokens"] for window in report.raw["windows"]["headrace"]] == [3000, 100, 2000]


def test_an_engine_without_its_server_is_no_peer(lab: Lab) -> None:
    taken = {"headrace": windows(3000), "vllm": windows(1500), "vllm-engine": windows(6000)}
    report = saturate.report(lab, taken, Peers())
    assert [figure.value for figure in report.figures] == [2.0, 0.5, 300.0]
    assert [row.note for row in report.rows] == ["", "best peer", ""]


def test_saturate_without_peers_has_no_ratio(lab: Lab) -> None:
    report = saturate.report(lab, {"headrace": windows(10)}, Peers(missing={"vllm": "gone"}))
    assert [figure.value for figure in report.figures] == [None, None, 1.0]
    assert report.figures[0].met is False


def test_single_ratios(lab: Lab) -> None:
    rounds = {
        "headrace": [[Reply(0.02, 0.5, 64)] * 3],
        "llamacpp": [[Reply(0.04, 1.0, 64)] * 3],
    }
    report = single.report(lab, rounds, Peers())
    assert [figure.value for figure in report.figures] == [2.0, 0.5]


def test_what_tracing_costs_is_the_median_within_the_rounds(lab: Lab) -> None:
    """Whatever the engine took: its time scatters."""

    def measured(*rounds: tuple[int, float, float]) -> list[tracing.Measured]:
        return [
            tracing.Measured(window, {"engine": engine_s, "gateway": beside_s / 2, "executor": beside_s / 2})
            for window, (_, engine_s, beside_s) in zip(windows(*(each[0] for each in rounds)), rounds, strict=True)
        ]

    taken = {
        tracing.ON: measured((990, 11, 1.089), (480, 3, 0.576), (2000, 19, 2.26)),
        tracing.OFF: measured((1000, 9, 1), (500, 4.5, 0.5), (1900, 17.1, 1.9)),
    }
    report = tracing.report(lab, taken)
    assert [figure.value for figure in report.figures] == [pytest.approx(0.01), pytest.approx(0.013)]
    assert report.rows[-1].values == {"tokens/s": "+1.0%, +4.0%, -5.3%", "CPU ms a token": "+1.0%, +2.0%, +1.3%"}
    assert report.rows[-2].values["CPU ms a token"] == "+1.30% ± 0.37%"
    assert report.rows[1].note == "engine 9.000, executor 0.500, gateway 0.500"


def test_threads_of_the_executor_that_compute_are_the_engines() -> None:
    used = {("executor", 1): 0.5, ("executor", 2): 7.0, ("executor", 3): 0.25, ("gateway", 4): 3.0}
    assert tracing.by_process(used, 10) == {"executor": 0.75, "engine": 7.0, "gateway": 3.0}


def test_overhead_takes_the_median_of_paired_differences(lab: Lab) -> None:
    pairs = [(0.010, 0.012), (0.050, 0.053), (0.010, 0.011)]
    saturated = {"share": 0.005, "cpu_s": {"scheduler": 0.1}, "wall_s": 30.0, "window": {}}
    report = overhead.report(lab, pairs, [0.008, 0.052, 0.010], saturated)
    assert report.figures[0].value == pytest.approx(2.0)
    assert report.rows[1].note == "the rest of a first token is 1.00 ms"
    assert report.figures[1].value == 0.005


def got(logprob: float, *tokens: int) -> exact.Got:
    chosen = [TokenLogprob(token, logprob) for token in tokens]
    return exact.Got(tokens, tuple(TokenLogprobs(one, (one,)) for one in chosen))


def test_exact_counts_answers_that_differ_in_a_token_or_in_one_bit(lab: Lab) -> None:
    alone = [got(-0.5, 1, 2), got(-0.5, 3, 4), got(-0.25, 5)]
    nearly = got(-0.25 - 2**-25, 5)
    asked = [exact.Asked((1, 2), {"max_tokens": 2})] * 3
    crowds = [exact.Crowd(alone, 0), exact.Crowd([alone[0], got(-0.5, 3, 9), nearly], 3)]
    report = exact.report(lab, asked, alone, crowds, {"exact": [95.0], "not exact": [100.0]})
    assert report.figures[0].value == 2
    assert report.figures[1].value == pytest.approx(0.05)
    first, second = report.raw["mismatched"][1]
    assert (first["first_difference"], second["first_difference"]) == (1, 0)
    assert report.raw["mismatched"][0] == []


def test_a_shorter_answer_is_a_mismatch() -> None:
    assert exact.mismatched([got(-0.5, 1, 2)], [got(-0.5, 1)]) == [0]


def test_settings_are_told_apart_by_what_differs() -> None:
    candidates = [{"kv": "u8", "threads": 2}, {"kv": "bf16", "threads": 2}]
    assert differing(candidates[1], candidates) == "kv=bf16"
    assert differing(candidates[0], candidates[:1]) == "its only settings"


def test_vip_compares_first_tokens_and_what_normal_gets(lab: Lab) -> None:
    def outcomes(realtime_s: float, normal_tokens: int) -> list[Outcome]:
        return [
            *(Outcome("realtime", realtime_s, 9.0, 9.0, 10, 10) for _ in range(3)),
            Outcome("normal", 5.0, 9.0, 9.0, 500, normal_tokens),
            Outcome("batch", 5.0, 9.0, 9.0, 500, 7),
        ]

    rounds = {"headrace": [outcomes(0.5, 99)], "fcfs": [outcomes(5.0, 100)]}
    report = vip.report(lab, rounds, 4.0, 10.0, {"vllm": "left out"}, {})
    assert [figure.value for figure in report.figures] == pytest.approx([0.9, 0.9, -0.01])
    assert [(row.system, row.values.get("class")) for row in report.rows][-2:] == [("fcfs", "batch"), ("vllm", None)]


def test_sched_takes_the_larger_queue(lab: Lab) -> None:
    samples = [
        sched.Sample(waiting, gathered, 1000, seconds)
        for gathered in (1, 16)
        for waiting, seconds in ((1_000, 0.02 / gathered), (100_000, 0.025 / gathered))
    ]
    report = sched.report(lab, samples)
    assert [figure.value for figure in report.figures] == pytest.approx([640_000, 1.25])


def test_a_fleet_keeps_its_slots_full_and_its_queue_long() -> None:
    fleet = sched.Fleet(num_waiting=50, seed=1, num_executors=3)
    sample = fleet.take(fleet.events(), 300, 1)
    assert sample.num_events == 300
    assert fleet.state.tally.finished == 100
    assert len(fleet.state.queues.by_id) >= 40
    assert all(each.ledger.num_slots >= sched.NUM_SLOTS - 1 for each in fleet.state.registry.executors.values())


def test_structured_counts_faults_and_takes_the_median_loss(lab: Lab) -> None:
    taken = {structured.FREE: windows(1000, 2000, 1000), structured.BOUND: windows(950, 1980, 900)}
    report = structured.report(lab, ["", "person: too old", "", "person: too old"], taken)
    valid, cost = (figure.value for figure in report.figures)
    assert (valid, cost) == (0.5, pytest.approx(0.05))
    assert report.rows[0].note == "person: too old"


async def test_structured_binds_a_quarter_of_the_streams() -> None:
    running, most, bound = 0, 0, 0

    class Client:
        async def stream(self, model: str, prompt: object, *, max_tokens: int, **options: object) -> Any:
            nonlocal running, most, bound
            assert options == {"json_schema": structured.ENDLESS}
            running, bound = running + 1, bound + 1
            most = max(most, running)
            for _ in range(max_tokens):
                await asyncio.sleep(0)
                yield SimpleNamespace(token_ids=(1,))
            running -= 1

    class Free:
        client, model = Client(), "tiny"

        async def stream(self, prompt: object, max_tokens: int) -> Any:
            await asyncio.sleep(0)
            yield max_tokens

    stream = structured.quarter_bound(Free())  # type: ignore[arg-type]

    async def ask() -> int:
        return sum([num_tokens async for num_tokens in stream((1, 2), 5)])

    assert await asyncio.gather(*(ask() for _ in range(64))) == [5] * 64
    assert (most, bound) == (structured.QUARTER, structured.QUARTER)
    assert await asyncio.gather(*(ask() for _ in range(4))) == [5] * 4
    assert bound == structured.QUARTER + 4
