"""How scenarios turn samples into figures."""

from pathlib import Path

import pytest

from headrace.benchmarks.closed_loop import Reply, Window
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.peers.running import Peers, differing
from headrace.benchmarks.scenarios import exact, overhead, saturate, single
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
    assert [figure.value for figure in report.figures] == [2.0, 200.0]
    assert {row.system: row.note for row in report.rows} == {
        "headrace": "",
        "vllm": "best peer",
        "llamacpp": "",
        "openvino-genai": "left out",
    }
    assert [window["num_tokens"] for window in report.raw["windows"]["headrace"]] == [3000, 100, 2000]


def test_saturate_without_peers_has_no_ratio(lab: Lab) -> None:
    report = saturate.report(lab, {"headrace": windows(10)}, Peers(missing={"vllm": "gone"}))
    assert [figure.value for figure in report.figures] == [None, 1.0]
    assert report.figures[0].met is False


def test_single_ratios(lab: Lab) -> None:
    rounds = {
        "headrace": [[Reply(0.02, 0.5, 64)] * 3],
        "llamacpp": [[Reply(0.04, 1.0, 64)] * 3],
    }
    report = single.report(lab, rounds, Peers())
    assert [figure.value for figure in report.figures] == [2.0, 0.5]


def test_overhead_takes_the_median_of_paired_differences(lab: Lab) -> None:
    pairs = [(0.010, 0.012), (0.050, 0.053), (0.010, 0.011)]
    saturated = {"share": 0.005, "cpu_s": {"scheduler": 0.1}, "wall_s": 30.0, "window": {}}
    report = overhead.report(lab, pairs, saturated)
    assert report.figures[0].value == pytest.approx(2.0)
    assert report.figures[1].value == 0.005


def got(logprob: float, *tokens: int) -> exact.Got:
    chosen = [TokenLogprob(token, logprob) for token in tokens]
    return exact.Got(tokens, tuple(TokenLogprobs(one, (one,)) for one in chosen))


def test_exact_counts_answers_that_differ_in_a_token_or_in_one_bit(lab: Lab) -> None:
    alone = [got(-0.5, 1, 2), got(-0.5, 3, 4), got(-0.25, 5)]
    nearly = got(-0.25 - 2**-25, 5)
    asked = [exact.Asked((1, 2), {"max_tokens": 2})] * 3
    report = exact.report(lab, asked, alone, [alone, [alone[0], got(-0.5, 3, 9), nearly]])
    assert report.figures[0].value == 2
    first, second = report.raw["mismatched"][1]
    assert (first["first_difference"], second["first_difference"]) == (1, 0)
    assert report.raw["mismatched"][0] == []


def test_a_shorter_answer_is_a_mismatch() -> None:
    assert exact.mismatched([got(-0.5, 1, 2)], [got(-0.5, 1)]) == [0]


def test_settings_are_told_apart_by_what_differs() -> None:
    candidates = [{"kv": "u8", "threads": 2}, {"kv": "bf16", "threads": 2}]
    assert differing(candidates[1], candidates) == "kv=bf16"
    assert differing(candidates[0], candidates[:1]) == "its only settings"
