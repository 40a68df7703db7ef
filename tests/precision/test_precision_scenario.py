"""The benchmark of precisions: its figure from made-up windows, perplexity worked out on paper, its goal and name."""

from pathlib import Path

import numpy as np
import pytest

from headrace.benchmarks.closed_loop import Window
from headrace.benchmarks.figures import GOALS
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.perplexity import perplexity
from headrace.benchmarks.scenarios import precision
from headrace.benchmarks.scenarios.registry import SCENARIOS
from headrace.core.model import ModelInfo
from headrace.executor.engines.reference import ReferenceEngine, expected_answer
from headrace.models import reference


def test_the_cut_is_the_share_of_a_tokens_cost(tmp_path: Path) -> None:
    rates = {"fp32": 300, "bf16": 500, "int8": 1000, "int8, KV u8": 900}
    windows = {variant: [Window(2.0, 2 * rates[variant.name], [])] * 3 for variant in precision.VARIANTS}
    qualities = dict.fromkeys(precision.VARIANTS, precision.Quality(12.5, 23_040))
    report = precision.report(Lab(tmp_path, reference.install(tmp_path), print), windows, qualities)
    (figure,) = report.figures
    assert figure.value == pytest.approx(0.7)
    assert figure.met
    assert report.rows[2].values == {
        "tokens/s": "1,000",
        "ms a token": "1.00",
        "against fp32": "-70%",
        "perplexity": "12.50",
        "KV kB a token": "23.0",
    }
    assert [row.system for row in report.rows] == list(rates)


def test_a_variant_that_gave_nothing_is_not_met(tmp_path: Path) -> None:
    windows: dict[precision.Variant, list[Window]] = {variant: [] for variant in precision.VARIANTS}
    qualities = dict.fromkeys(precision.VARIANTS, precision.Quality(12.5, 23_040))
    (figure,) = precision.report(Lab(tmp_path, reference.install(tmp_path), print), windows, qualities).figures
    assert (figure.value, figure.met) == (None, False)


def test_perplexity_of_what_the_reference_would_say() -> None:
    info = ModelInfo("reference", "decoder", "built in", context_tokens=4096, vocab_size=512, eos_token_ids=(256,))
    engine = ReferenceEngine(info, 64)
    said = [72, 105, *expected_answer([72, 105], 6)]
    # one token has logit 4, two of each 4 - d / 4 for distances d up to 47, the other 417 ids -16 - id / 64
    ring = np.array([4.0, *(4 - d / 4 for d in range(1, 48) for _ in range(2))])
    others = np.array([-16 - token / 64 for token in range(512) if not 32 <= token < 127])
    total = np.log(np.exp(ring).sum() + np.exp(others).sum())
    place = min((105 - 32 - (72 % 95)) % 95, (32 + 72 % 95 - 105) % 95)
    losses = [total - (4 - place / 4), *[total - 4] * 6]  # "i" was not what would follow "H", the rest is
    assert perplexity(engine, np.array(said, np.int64)) == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)


def test_the_scenario_reports_what_it_says() -> None:
    assert SCENARIOS["precision"].figures == ("precision.cost_cut",)
    assert (GOALS["precision.cost_cut"].goal, GOALS["precision.cost_cut"].better) == (0.65, "higher")
