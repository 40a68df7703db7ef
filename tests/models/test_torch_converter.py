"""Safetensors decoders go through an environment of their own; here a stand-in for its Python shows what is asked."""

import dataclasses
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import EngineFault, Unavailable
from headrace.models import environment as environments
from headrace.models import torch_converter
from headrace.models.convert import PROBE_TEXTS, PROBE_TOKENS
from headrace.models.graph import Graph
from headrace.models.repository import ModelEntry

Write = Callable[..., Path]
Add = Callable[..., ModelEntry]


def environment(home: Path, program: str) -> None:
    """An environment whose Python runs a program of ours, whatever script it is given."""
    folder = home / "converter"
    (folder / "bin").mkdir(parents=True)
    (folder / "program.py").write_text(program)
    python = folder / "bin/python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/program.py" "$@"\n')
    python.chmod(0o755)
    (folder / "headrace-requirements.txt").write_text("\n".join(torch_converter.REQUIREMENTS) + "\n")


def exporter(graph: Path, logits: Path) -> str:
    return f"""
import os, shutil, sys
script, source, target = sys.argv[1:]
assert script.endswith("torch_export.py"), script
for folder in (target, target + "/whole"):
    os.makedirs(folder, exist_ok=True)
    for suffix in (".xml", ".bin"):
        shutil.copy({str(graph.with_suffix(""))!r} + suffix, folder)
shutil.copy({str(logits)!r}, target + "/logits.npz")
"""


def save_logits(path: Path, logits: list[np.ndarray]) -> None:
    np.savez(path, **{str(index): each for index, each in enumerate(logits)})


def test_what_agrees_with_torch_is_stored_and_what_does_not_is_refused(
    tmp_path: Path, write_decoder_texts: Write, add: Add, tiny_llama: ModelEntry
) -> None:
    source, logits = write_decoder_texts(tmp_path / "tiny"), tmp_path / "logits.npz"
    probes = [list(text.encode())[:PROBE_TOKENS] for text in PROBE_TEXTS]
    right = Graph(tiny_llama.graph).outputs(probes)
    environment(tmp_path, exporter(tiny_llama.graph, logits))
    save_logits(logits, right[::-1])
    with pytest.raises(EngineFault, match="does not compute what its source does"):
        add(tmp_path, source)
    save_logits(logits, right)
    entry = add(tmp_path, source)
    assert (entry.info.kind, entry.info.context_tokens, entry.info.eos_token_ids) == ("decoder", 128, (256,))
    assert not list(tmp_path.glob("tmp-*"))


def test_its_last_words_are_the_error(tmp_path: Path, write_decoder_texts: Write, add: Add) -> None:
    environment(tmp_path, "import sys; sys.exit('first\\nKeyError: no such architecture')")
    with pytest.raises(EngineFault, match=r"^tiny cannot be converted: KeyError: no such architecture$"):
        add(tmp_path, write_decoder_texts(tmp_path / "tiny"))


def test_an_environment_of_other_requirements_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(tmp_path, "")
    converter = torch_converter.environment(tmp_path)
    assert converter.ready
    other = dataclasses.replace(converter, requirements=("nothing==0",))
    assert not other.ready
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match=r"decoders cannot be made: exit code 1$"):
        other.install()
    assert not other.ready


def test_two_that_want_an_environment_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would else clear it under the first one's feet."""
    made: list[str] = []
    started, second_came = threading.Event(), threading.Event()
    wanted = torch_converter.environment(tmp_path)

    def run(command: list[str]) -> None:
        if started.is_set() and "venv" in command:
            second_came.set()
        made.append(command[2])
        (tmp_path / "converter/bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "converter/bin/python").touch()
        started.set()
        second_came.wait(0.3)  # long enough for one that is not kept out

    monkeypatch.setattr(environments, "_run", run)
    threads = [threading.Thread(target=wanted.install) for _ in range(2)]
    threads[0].start()
    assert started.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert made.count("venv") == 1
    assert wanted.ready


def test_end_tokens_of_the_generation_settings_come_first(
    tmp_path: Path, write_decoder_texts: Write, add: Add, tiny_llama: ModelEntry
) -> None:
    source = write_decoder_texts(tmp_path / "tiny")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (source / name).write_bytes((tiny_llama.folder / name).read_bytes())
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 256]}))
    (source / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]})
    )
    entry = add(tmp_path, source)
    assert entry.info.eos_token_ids == (7, 256)
    assert entry.chat_template == "d"
