"""Tuning: the search over made-up speeds, a run over the reference engine's real step loop, and the command."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import EngineFault, PoolExhausted
from headrace.core.model import ModelInfo
from headrace.executor.engines.reference import ReferenceEngine
from headrace.executor.hardware.search import Pair, Search, Setting, is_better, promising
from headrace.executor.hardware.trial import Load, run_trial
from headrace.executor.hardware.tune import Tuned, tune
from headrace.models import reference

START = Setting(64, 640)
INFO = ModelInfo("reference", "decoder", "digest", 512, 257, (256,))
LOAD = Load(streams=8, prompt_tokens=16, answer_tokens=8, seconds=0.05, inter_token_s={})


def climb(speed: Callable[[Setting], float], budget: int = 30) -> Search:
    search = Search(START, 256, 8192, budget)
    while (candidate := search.candidate()) is not None:
        search.tell(candidate, [Pair(speed(search.best), speed(candidate))] * 3)
    return search


def test_the_climb_finds_a_peak_in_both_values() -> None:
    def speed(setting: Setting) -> float:
        return 1000 - abs(setting.num_slots - 128) - abs(setting.step_tokens - 2560) / 10

    search = climb(speed)
    assert search.best.num_slots == 128
    assert abs(search.best.step_tokens - 2560) <= 640
    assert len({each.candidate for each in search.tried}) == len(search.tried)


def test_where_nothing_is_better_the_start_stays() -> None:
    search = climb(lambda setting: 1000.0)
    assert search.best == START
    assert 0 < len(search.tried) < 30


def test_no_more_trials_than_the_budget() -> None:
    assert len(climb(lambda setting: setting.step_tokens, budget=2).tried) == 2


def test_candidates_keep_within_bounds() -> None:
    search = climb(lambda setting: setting.num_slots * 10 - setting.step_tokens)
    assert all(1 <= each.candidate.num_slots <= 256 for each in search.tried)
    assert all(each.candidate.num_slots + 2 <= each.candidate.step_tokens <= 8192 for each in search.tried)


@pytest.mark.parametrize(
    ("ratios", "better", "goes_on"),
    [
        ([1.05, 1.04, 1.10], True, True),
        ([1.50, 1.40, 0.99], False, False),  # one run without a gain: noise is as large
        ([1.01, 1.02, 1.02], False, True),
        ([0.90], False, False),
    ],
)
def test_a_gain_counts_if_every_pair_shows_it(ratios: list[float], better: bool, goes_on: bool) -> None:
    pairs = [Pair(100.0, 100.0 * ratio) for ratio in ratios]
    assert is_better(pairs) is better
    assert promising(pairs) is goes_on


def test_a_judgement_needs_a_pair() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        Search(START, 1, 1, 1).tell(START, [])


def test_what_is_kept_is_the_last_comparison_with_the_start() -> None:
    best = Setting(32, 640)
    better = Tuned(START, best, (), (Pair(100.0, 110.0), Pair(102.0, 112.0), Pair(101.0, 111.0)))
    measured = better.as_measured("digest")
    assert measured is not None
    assert (measured.num_slots, measured.tokens_per_s, measured.default_tokens_per_s) == (32, 111.0, 101.0)
    assert Tuned(START, best, (), (Pair(100.0, 99.0),)).as_measured("digest") is None
    assert Tuned(START, START, (), ()).as_measured("digest") is None


@pytest.mark.parametrize("num_slots", [2, 8])
def test_a_run_counts_tokens_of_full_streams(num_slots: int) -> None:
    engine = ReferenceEngine(INFO, 256, step_delay_s=0.001)
    assert run_trial(engine, (256,), LOAD, Setting(num_slots, 64)) > 0


def test_a_load_that_does_not_fit_is_told() -> None:
    engine = ReferenceEngine(INFO, 2, step_delay_s=0.0)
    with pytest.raises((PoolExhausted, EngineFault)):
        run_trial(engine, (256,), LOAD, Setting(8, 64))


def test_each_candidate_is_measured_beside_the_best() -> None:
    engine = ReferenceEngine(INFO, 256, step_delay_s=0.002)
    tuned = tune(engine, (256,), LOAD, Setting(2, 64), trials=3, report=lambda tried: None)
    assert len(tuned.tried) == 3
    assert all(pair.best > 0 and pair.candidate > 0 for each in tuned.tried for pair in each.pairs)
    assert all(each.better is is_better(each.pairs) for each in tuned.tried)
    assert tuned.best in {tuned.start, *(each.candidate for each in tuned.tried)}
    assert (tuned.best == tuned.start) == (tuned.final == ())


def test_the_command_writes_a_profile_or_says_that_nothing_is_better(tmp_path: Path) -> None:
    model = reference.install(tmp_path).info.name
    environment = {"HEADRACE_MODELS__HOME": str(tmp_path), "HEADRACE_EXECUTOR__ENGINE": "reference"}
    environment |= {"HEADRACE_EXECUTOR__REFERENCE_STEP_MS": "2", "HEADRACE_EXECUTOR__NUM_SLOTS": "2"}
    command = [sys.executable, "-m", "headrace.cli.main", "tune", "--model", model, "--streams", "8"]
    command += ["--prompt-tokens", "8", "--answer-tokens", "8", "--seconds", "0.1", "--trials", "3"]
    runs = tmp_path / "runs.json"
    done = subprocess.run(
        [*command, "--json", str(runs)], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(runs.read_text(encoding="utf-8"))
    assert len(found["tried"]) == 3
    profiles = list((tmp_path / "hardware").glob("*.toml"))
    if found["improved"]:
        assert "after " in done.stdout
        assert f"num_slots = {found['best']['num_slots']}" in profiles[0].read_text(encoding="utf-8")
    else:
        assert "cannot be improved" in done.stdout


def test_the_command_refuses_what_is_no_decoder_or_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "tune", "--model", "nobody"]
    environment = {"HEADRACE_MODELS__HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no model 'nobody'")
