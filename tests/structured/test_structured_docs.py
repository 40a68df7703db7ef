"""What docs/structured.md shows runs as it stands."""

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "structured.md"
ADDRESS = "127.0.0.1:8470"


def test_the_python_example(served, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert ADDRESS in code
    exec(compile(code.replace(ADDRESS, served.grpc), str(PAGE), "exec"), {})
    age, choice, date, total = capsys.readouterr().out.splitlines()
    assert 0 <= int(age) <= 120
    assert choice in ("yes", "no")
    assert re.fullmatch("20[0-9]{2}-[01][0-9]-[0-3][0-9]", date)
    assert re.fullmatch(r"[1-9][0-9]?( \+ [1-9][0-9]?)+ = [1-9][0-9]?|[0-9 +]+", total)


def test_every_option_of_the_command(served, tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}))
    grammar.write_text('root ::= "a" [0-9]')
    said = {
        "--json-schema": (str(schema), r"\[-?\d+, -?\d+\]"),
        "--regex": ("[xyz]{3}", "[xyz]{3}"),
        "--grammar": (str(grammar), r"a\d"),
    }
    options = set(re.findall(r"`(--[a-z-]+)[^`]*`", PAGE.read_text(encoding="utf-8")))
    assert options == {*said, "--json-object", "--choice"}
    for option, (value, expected) in said.items():
        shown = ask(served.grpc, option, value)
        assert re.fullmatch(expected, shown.stdout.strip()), shown
        assert "stop" in shown.stderr
    assert ask(served.grpc, "--choice", "north", "--choice", "south").stdout.strip() in ("north", "south")
    assert ask(served.grpc, "--json-object", "--max-tokens", "8").stdout.startswith("{")
    refused = ask(served.grpc, "--regex", "(")
    assert refused.returncode == 1
    assert "sampling.regex" in refused.stderr


def ask(gateway: str, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headrace.cli.main", "generate", "Hello", "--address", gateway, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
