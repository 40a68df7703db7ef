"""The page of settings is what the code gives."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from headrace.chassis.config import Settings

ROOT = Path(__file__).resolve().parents[2]


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("configuration", ROOT / "tools" / "configuration.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_gives() -> None:
    tool = _tool()
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run python tools/configuration.py"


def test_it_has_every_setting() -> None:
    tool = _tool()
    text = tool.page()
    for name, model, _ in tool.sections(Settings):
        heading = re.search(rf"^## \[+{re.escape(name)}\]+$(.*?)(?=^## |\Z)", text, re.M | re.S)
        assert heading, name
        inner = {each.rpartition(".")[2] for each, *_ in tool.sections(Settings) if each.startswith(f"{name}.")}
        for setting in set(model.model_fields) - inner:
            assert f"| `{setting}` |" in heading[1], f"{name}.{setting}"
