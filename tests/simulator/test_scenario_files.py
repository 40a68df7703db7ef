"""Bad scenario files: every fault in one go, with file, field and limit. And the command around them."""

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.core.errors import ConfigError
from headrace.simulator.report import plot
from headrace.simulator.scenario import load_scenario
from headrace.simulator.simulate import simulate

GOOD = """
name = "small"
duration_s = 5
[[streams]]
name = "all"
classes = { realtime = 1, batch = 1 }
arrivals = { kind = "poisson", load = 0.5 }
prompt = { kind = "fixed", tokens = 20 }
output = { kind = "histogram", edges = [1, 10, 50], weights = [1, 2] }
"""

BAD = """
name = "bad"
duration_s = -1
colour = "red"
[[fleet]]
num_slots = 0
step = { base_s = 0 }
[[faults]]
kind = "explode"
executor = 0
at_s = 1
[sla]
urgent = { ttft_s = 1 }
[policy]
batch_share = 7
order = "random"
[[streams]]
name = "one"
classes = { vip = 1 }
arrivals = { kind = "poisson" }
prompt = { kind = "lognormal", p50 = 10, p90 = 5 }
output = { kind = "histogram", edges = [1, 2], weights = [1, 2] }
[[streams]]
name = "two"
trace = "nowhere"
"""


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("duration_s", "greater than 0"),
        ("colour", "not permitted"),
        ("fleet.0.num_slots", "greater than or equal to 1"),
        ("fleet.0.step.base_s", "above 0"),
        ("faults.0.kind", "'crash', 'start' or 'drain'"),
        ("sla", "no class urgent; there are realtime, normal, batch"),
        ("policy", "batch_share: 7 is outside 0.01..0.99"),
        ("policy", "'random' is not qos, strict, fcfs"),
        ("streams.0.classes", "no class vip"),
        ("streams.0.arrivals.poisson", "rate_rps or load"),
        ("streams.0.prompt.lognormal", "p90 is 5, must be at least p50, 10"),
        ("streams.0.output.histogram", "2 edges for 2 weights"),
        ("streams.1.trace", "azure_llm_2023_conv"),
    ],
)
def test_each_fault_of_a_bad_file_is_named(tmp_path: Path, field: str, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(BAD)
    with pytest.raises(ConfigError) as raised:
        load_scenario(str(path))
    lines = raised.value.message.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert any(line.startswith(f"{path}: {field}: ") and says in line for line in lines), lines


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('[[streams]]\nname = "all"\ntrace = "azure_llm_2023_conv"', "two streams of one name: all"),
        ('[[faults]]\nkind = "crash"\nexecutor = 3\nat_s = 1', "faults: no executor 3; there are 0 to 0"),
        ('[[streams]]\nname = "x"\ntrace = "arxiv_summarization_lengths"', "needs arrivals"),
        ('[[streams]]\nname = "x"', "needs arrivals, prompt, output, or a trace"),
        ("[[fleet]]\nnum_blocks = 2\nblock_tokens = 16", "above the 32 tokens"),
        ("[[", "bad.toml"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, lines: str, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(GOOD + lines)
    with pytest.raises(ConfigError) as raised:
        load_scenario(str(path))
    assert says in raised.value.message
    assert "at least 1 item" not in raised.value.message


def test_the_command_shows_policies_and_leaves_json(tmp_path: Path) -> None:
    path, report = tmp_path / "small.toml", tmp_path / "report.json"
    path.write_text(GOOD)
    shown = CliRunner().invoke(app, ["simulate", str(path), "--policy", "default,fcfs", "--json", str(report)])
    assert shown.exit_code == 0, shown.output
    runs = json.loads(report.read_text())["runs"]
    assert [run["policy"] for run in runs] == ["default", "fcfs"]
    assert all(sum(run["outcomes"].values()) == run["requests"] > 0 for run in runs)
    assert all(word in shown.output for word in ("realtime", "batch", "fcfs", "TTFT"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a scenario or a --trace"),
        (["nowhere"], "no such file, nor a scenario of the suite: batch_flood, encoders, two_tenants, vip"),
        (["vip", "--load", "2"], "--load: only with --trace"),
        (["vip", "--policy", "default,best"], "no policy 'best'"),
        (["vip", "--executors", "0"], "fleet.0.count"),
        (["--trace", "azure_llm_2023_conv", "--tenants", "a"], "NAME=SHARE"),
        (["--trace", "azure_llm_2023_conv", "--classes", "normal=0"], "streams.0.classes.normal"),
        (["vip", "--json", "nowhere/report.json"], "no folder nowhere"),
    ],
)
def test_a_wrong_call_is_told_so(arguments: list[str], says: str) -> None:
    failed = CliRunner().invoke(app, ["simulate", *arguments])
    assert failed.exit_code == 1
    assert says in str(failed.exception)


def test_a_picture_without_matplotlib_is_one_line() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from headrace.cli.main import main; main()"
    command = [sys.executable, "-c", code, "simulate", "vip", "--plot", "vip.png"]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1
    assert failed.stderr.splitlines() == ["error: --plot needs matplotlib: pip install 'headrace[sim]'"]


def test_a_picture_has_a_column_a_policy_and_a_line_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.toml"
    path.write_text(GOOD)
    axes = [[MagicMock(), MagicMock()] for _ in range(3)]
    figure = MagicMock()
    figure.subplots.return_value = axes
    monkeypatch.setattr(plot, "figure_class", lambda: lambda **_: figure)
    plot.plot([simulate(load_scenario(str(path)), name) for name in ("default", "fcfs")], tmp_path / "x.png")
    labels = [[sorted(call.kwargs["label"] for call in each.plot.call_args_list) for each in row] for row in axes]
    assert labels == [[["batch", "realtime"]] * 2, [["slots used"]] * 2, [["batch", "realtime"]] * 2]
    figure.savefig.assert_called_once_with(tmp_path / "x.png")
