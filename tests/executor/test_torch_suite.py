"""A checkpoint is added as it is and served through the suite by torch, with its experts on demand or all resident."""

import asyncio
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from headrace.benchmarks.random_decoders import random_decoder
from headrace.chassis.config import default_home, load_settings
from headrace.cli.main import app
from headrace.client import AsyncClient
from headrace.core.errors import ConfigError, EngineNotReady, InvalidRequest
from headrace.executor.engines.registry import load_engine
from headrace.models.checkpoint import install
from headrace.models.repository import Repository
from headrace.standalone.single import running

PROMPTS = ("The canal above the mill", "Seven copper coins", "Why is the lock closed?")
PATIENCE_S = 120


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Mixtral with SmolLM2's tokenizer, added by the command."""
    home, source = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("source")
    random_decoder("mixtral", vocab_size=49152).save_pretrained(source)
    shutil.copyfile(Repository(default_home()).get("smollm2").tokenizer, source / "tokenizer.json")
    done = CliRunner().invoke(app, ["models", "add", str(source), "--checkpoint", "--name", "mix", "--home", str(home)])
    assert "added mix (decoder, 512 tokens of context, a checkpoint)" in done.output, done.output
    return home


async def answers(home: Path, resident_experts: int) -> list[str]:
    anywhere = {"listen": "127.0.0.1:0"}
    executor = {
        "engine": "torch",
        "models": ["mix"],
        "resident_experts": resident_experts,
        "kv_bytes": 2**26,
        "threads": 1,
    }
    settings = load_settings(
        overrides={
            "models": {"home": home},
            "scheduler": anywhere,
            "executor": anywhere | executor,
            "encoder": {"model": ""},
            "gateway": anywhere,
        }
    )
    async with asyncio.timeout(PATIENCE_S), running(settings) as suite, AsyncClient(suite.gateway) as client:
        calls = [client.generate("mix", each, max_tokens=12, ignore_eos=True) for each in PROMPTS]
        return [answer.text for answer in await asyncio.gather(*calls)]


async def test_a_mixture_is_served_with_experts_on_demand(home: Path) -> None:
    before = torch.get_num_threads()
    try:
        few, everybody = await answers(home, 3), await answers(home, 0)
    finally:
        torch.set_num_threads(before)
    assert few == everybody
    assert len(set(few)) == len(PROMPTS)
    assert all(few)


def test_what_cannot_be_served_is_told(home: Path, tmp_path: Path) -> None:
    entry = Repository(home).get("mix")

    def engine(**own: object) -> None:
        load_engine(load_settings(overrides={"executor": {"engine": "torch", **own}}).executor, entry)

    with pytest.raises(EngineNotReady, match="does not compute in int8"):
        engine(precision="int8")
    with pytest.raises(ConfigError, match=r"only executor.engine torch keeps experts on demand"):
        engine(engine="openvino", resident_experts=2)
    shutil.rmtree(entry.checkpoint)
    with pytest.raises(EngineNotReady, match="model 'mix' has no checkpoint; run: headrace models add"):
        engine()
    with pytest.raises(InvalidRequest, match=r"is no checkpoint: it wants config.json"):
        install(home, tmp_path, "other")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        install(home, tmp_path, "other")
