"""A model with a damaged file: its executor says so at its start, in one line, and the text side at its first use."""

from pathlib import Path

import pytest
from opentelemetry.trace import NoOpTracer

from headrace.chassis.config import load_settings
from headrace.core.errors import EngineNotReady
from headrace.executor import app as executor_app
from headrace.executor.engines.loading import not_loaded
from headrace.models import reference
from headrace.models.repository import Repository
from headrace.preprocess.text_models import TextModels

WHAT = rf"model '{reference.NAME}' is damaged \(tokenizer\.json\): remove it and add it again"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    entry = reference.install(tmp_path)
    whole = entry.tokenizer.read_bytes()
    entry.tokenizer.write_bytes(whole[: len(whole) // 2])
    return tmp_path


async def test_an_executor_does_not_start(home: Path) -> None:
    own = {"models": [reference.NAME], "engine": "reference", "listen": "127.0.0.1:0"}
    settings = load_settings(overrides={"models": {"home": str(home)}, "executor": own})
    with pytest.raises(EngineNotReady, match=WHAT):
        async with executor_app.start(settings, NoOpTracer()):
            pass


def test_the_text_side_names_the_file(home: Path) -> None:
    with pytest.raises(EngineNotReady, match=WHAT):
        TextModels(Repository(home)).load(reference.NAME)


def test_what_a_library_says_over_lines_is_told_in_one(tmp_path: Path) -> None:
    error = not_loaded(reference.install(tmp_path), RuntimeError("Check failed:\n  at x.cpp:1\n\n"))
    assert error.message.endswith(": Check failed: at x.cpp:1")
