"""All scenarios in one go: what fails is named, the rest is measured."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.benchmarks.all import Everything, run_all
from headrace.benchmarks.figures import Figure, Report, Row
from headrace.benchmarks.lab import Lab
from headrace.benchmarks.scenarios.registry import Scenario
from headrace.cli import bench
from headrace.core.errors import Unavailable
from headrace.core.model import ModelInfo
from headrace.models.repository import ModelEntry, Repository


@pytest.fixture
async def everything(tmp_path: Path) -> Everything:
    async def works(lab: Lab) -> Report:
        return Report("saturate", [Figure("saturate.ratio_best_peer", 1.5), Figure("saturate.tokens_per_s", 9.0)], [])

    async def tables(lab: Lab) -> Report:
        return Report("ablation", [], [Row("everything on", {"goodput/s": "5"}), Row("without pace", note="a | b")])

    async def lacks(lab: Lab) -> Report:
        raise Unavailable("no such\nfolder")

    async def breaks(lab: Lab) -> Report:
        raise ExceptionGroup("streams", [ExceptionGroup("inner", [ValueError("short")])])

    runs = {"lacks": lacks, "works": works, "breaks": breaks, "tables": tables}
    lab = Lab(tmp_path, ModelEntry(ModelInfo("tiny", "decoder", "d", 8, 9, (0,)), tmp_path, "", "", ""), print)
    scenarios = {name: Scenario(name, run, ()) for name, run in runs.items()}
    return await run_all(scenarios, lab, {"processor": "abacus", "cores": 2})


async def test_what_fails_does_not_stop_the_rest(everything: Everything) -> None:
    assert [report.scenario for report in everything.reports] == ["saturate", "ablation"]
    assert everything.failed == {"lacks": "no such\nfolder", "breaks": "ValueError: short"}


async def test_one_json_holds_all(everything: Everything, tmp_path: Path) -> None:
    everything.write_json(tmp_path / "deep" / "all.json")
    content = json.loads((tmp_path / "deep" / "all.json").read_text(encoding="utf-8"))
    assert content["reports"][0]["figures"][0]["met"] is True
    assert content["reports"][0]["machine"] == {"processor": "abacus", "cores": 2}
    assert set(content["failed"]) == {"lacks", "breaks"}


async def test_markdown_has_figures_tables_and_failures(everything: Everything) -> None:
    lines = everything.markdown().splitlines()
    assert "| `saturate.ratio_best_peer` | 1.5 x | ≥ 1.3 | yes |" in lines
    assert "| `saturate.tokens_per_s` | 9 tokens/s |  |  |" in lines
    assert "| everything on | 5 |  |" in lines
    assert "| without pace | – | a \\| b |" in lines
    assert "- lacks: no such folder" in lines


def test_the_command_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lacks(lab: Lab) -> Report:
        raise Unavailable(f"{lab.rounds} rounds without a peer")

    lab = Lab(tmp_path, ModelEntry(ModelInfo("tiny", "decoder", "d", 8, 9, (0,)), tmp_path, "", "", ""), print)
    monkeypatch.setattr(bench, "SCENARIOS", {"lacks": Scenario("lacks", lacks, ())})
    monkeypatch.setattr(Repository, "get", lambda repository, model: lab.entry)
    files = {"--json": tmp_path / "all.json", "--markdown": tmp_path / "figures.md"}
    options = [str(word) for pair in files.items() for word in pair]
    result = CliRunner().invoke(bench.app, ["--all", "--rounds", "7", *options])
    assert result.exit_code == 0, result.output
    assert json.loads(files["--json"].read_text(encoding="utf-8"))["failed"] == {"lacks": "7 rounds without a peer"}
    assert "- lacks: 7 rounds without a peer" in files["--markdown"].read_text(encoding="utf-8")
