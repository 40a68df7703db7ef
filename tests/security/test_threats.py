"""Each threat that docs/security.md lists has its test, and the test is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)` \|$")


def test_every_threat_has_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = page.partition("## Threats")[2].partition("| --- | --- | --- |")[2].partition("\n\n")[0].strip().splitlines()
    assert len(rows) > 20
    for row in rows:
        found = NAMED.search(row)
        assert found is not None, row
        tree = ast.parse((ROOT / found[1]).read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert found[2] in defined, row
