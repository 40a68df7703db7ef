"""How the replay and the ablation choose requests and judge what became of them."""

import itertools
import random
from pathlib import Path

import pytest

from headrace.benchmarks.conversation_lengths import MOST, excerpt, recording
from headrace.benchmarks.goodput import Score, arrivals, inter_token_s, is_met, score
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.open_loop import Outcome
from headrace.benchmarks.peers.running import Peers
from headrace.benchmarks.prompts import Prompts
from headrace.benchmarks.scenarios import ablation, replay
from headrace.chassis.config import load_settings
from headrace.core.model import ModelInfo
from headrace.models.repository import ModelEntry

WINDOW_S = 1.5 * 20.0


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    info = ModelInfo("tiny", "decoder", "d", 8192, 100, (0,))
    return Lab(tmp_path, ModelEntry(info, tmp_path, "", "", ""), print, window_s=20.0)


def outcome(ttft_s: float, total_s: float, tokens: int = 11, within: int = 11) -> Outcome:
    return Outcome("normal", ttft_s, total_s, total_s, tokens, within)


MET = outcome(0.5, 1.0)
LATE = outcome(1.01, 1.2)
SLOW = outcome(0.5, 1.6)


def test_met_is_an_early_first_token_and_a_steady_pace() -> None:
    assert [is_met(each) for each in (MET, LATE, SLOW, outcome(1.0, 1.5), outcome(0.5, 9.0, tokens=1))] == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert inter_token_s(SLOW) == pytest.approx(0.11)


def test_a_score_is_over_all_rounds() -> None:
    taken = score([[MET, MET, LATE], [SLOW, outcome(0.1, 0.2, within=5)]], window_s=10.0)
    assert taken.goodput == pytest.approx(3 / 20)
    assert taken.met_share == pytest.approx(3 / 5)
    assert taken.tokens_per_s == pytest.approx((4 * 11 + 5) / 20)
    assert (taken.ttft_p50_s, taken.ttft_p99_s) == (0.5, 1.01)


def test_an_excerpt_keeps_the_order_and_has_the_rate() -> None:
    times = [float(number**2) for number in range(100)]
    lengths = [(number + 2, 1) for number in range(100)]
    chosen = excerpt(times, lengths, rate=2.0, window_s=10.0, drawn=random.Random(3))
    assert len(chosen) == 20
    seconds = [at_s for at_s, _, _ in chosen]
    assert seconds == sorted(seconds)
    assert (seconds[0], seconds[-1]) == (0.0, pytest.approx(10.0))
    first = chosen[0][1]
    assert [prompt for _, prompt, _ in chosen] == list(range(first, first + 20)), "consecutive"
    gaps = [after - before for before, after in itertools.pairwise(seconds)]
    assert gaps == sorted(gaps), "distances in proportion to the recorded ones"


def test_without_recordings_lengths_and_times_are_made_up(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        times, lengths = recording(folder, seed=1)
        assert len(times) == len(lengths) > 1000
        assert times == sorted(times)
        assert all(2 <= prompt <= MOST[0] and 1 <= answer <= MOST[1] for prompt, answer in lengths)


def test_every_system_gets_the_same_requests() -> None:
    class Texts(Prompts):
        def __init__(self) -> None:
            self._ids = iter(range(10**6))

    recorded = recording(None, seed=1)
    first, second = (arrivals(recorded, Texts(), 5.0, 10.0, seed=2) for _ in range(2))
    assert first == second != arrivals(recorded, Texts(), 5.0, 10.0, seed=3)
    assert len(first) == 50
    assert {each.qos for each in first} == {"normal"}


def test_replay_compares_with_the_best_peer(lab: Lab) -> None:
    rounds = {"headrace": [[MET] * 6, [MET] * 6], "vllm": [[MET] * 3, [MET, LATE]], "llamacpp": [[SLOW], [MET]]}
    report = replay.report(lab, rounds, 10.0, Peers(missing={"openvino-genai": "left out"}))
    assert [figure.value for figure in report.figures] == pytest.approx([3.0, 12 / (2 * WINDOW_S)])
    assert {row.system: row.note for row in report.rows} == {
        "headrace": "",
        "vllm": "best peer",
        "llamacpp": "",
        "openvino-genai": "left out",
    }
    assert len(report.raw["outcomes"]["headrace"][1]) == 6


@pytest.mark.parametrize("peers", [{}, {"vllm": [[LATE]]}])
def test_replay_has_no_ratio_to_nothing(lab: Lab, peers: dict[str, list[list[Outcome]]]) -> None:
    report = replay.report(lab, {"headrace": [[MET]], **peers}, 10.0, Peers())
    assert report.figures[0].value is None
    assert report.figures[0].met is False


def test_a_technique_is_worth_what_is_lost_without_it() -> None:
    gained = ablation.gains(Score(3.0, 1.0, 110.0, 0.1, 0.5), Score(2.0, 0.7, 100.0, 0.2, 2.0))
    assert gained == pytest.approx({"goodput": 0.5, "tokens/s": 0.1, "TTFT p99": 0.75})
    assert ablation.gains(Score(3.0, 1.0, 1.0, 0.1, 0.5), Score(0.0, 0.0, 1.0, 2.0, 2.0))["goodput"] is None


def test_ablation_lists_what_was_not_measured(lab: Lab) -> None:
    chosen = ablation.variants(8192)
    rounds = {ablation.EVERYTHING: [[MET] * 4], "pace": [[MET] * 2 + [LATE] * 2]}
    report = ablation.report(lab, chosen, rounds, 10.0, {"int8 weights": "no such variant"})
    rows = {row.system: row for row in report.rows}
    assert len(rows) == len(chosen)
    assert "worth: goodput" not in rows[ablation.EVERYTHING].values
    assert rows["without pace"].values["worth: goodput"] == "+100.0%"
    assert rows["without int8 weights"].note == "no such variant"
    assert rows["without speculation"].note == "not measured"
    assert report.raw["worth"]["pace"]["goodput"] == pytest.approx(1.0)


@pytest.mark.parametrize("variant", ablation.variants(8192), ids=lambda variant: variant.technique)
def test_each_variant_changes_a_setting_that_exists(variant: ablation.Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = load_settings()
    for name, value in variant.settings.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    switched = (settings.executor, settings.scheduler) != (usual.executor, usual.scheduler)
    assert switched is (variant.technique not in (ablation.EVERYTHING, ablation.STATIC))
