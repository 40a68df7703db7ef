"""`headrace tune`: measures what suits this machine, and keeps it where it is better than the table."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console

from headrace.chassis.config import load_settings
from headrace.core.errors import ConfigError
from headrace.core.request import QosClass
from headrace.executor.engines.registry import load_engine, served
from headrace.executor.hardware.defaults import filled_decoder, host
from headrace.executor.hardware.profile import profile_path, write_measured
from headrace.executor.hardware.search import LEAST_GAIN, Setting, Tried
from headrace.executor.hardware.trial import Load
from headrace.executor.hardware.tune import Tuned
from headrace.executor.hardware.tune import tune as search_best
from headrace.models.repository import Repository


def tune(
    model: Annotated[str, typer.Option(help="An installed decoder.")] = "smollm2",
    precision: Annotated[str, typer.Option(help="own, or one that the model is there in.")] = "own",
    streams: Annotated[int, typer.Option(min=1, max=4096, help="Requests at once.")] = 64,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each prompt.")] = 128,
    answer_tokens: Annotated[int, typer.Option(min=2, help="Of each answer.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, max=300, help="Of each run, once all streams run.")] = 6.0,
    trials: Annotated[int, typer.Option(min=1, max=100, help="Most candidates that are measured.")] = 8,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML settings of the executor.")] = None,
    keep: Annotated[bool, typer.Option(help="Write what is better to the machine's profile.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all runs there.")] = None,
) -> None:
    """Measure slots and step tokens on this machine with the real engine; keep what is better than the table."""
    settings = load_settings(config, {"executor": {"models": [model], "precision": [precision]}})
    own, home = settings.executor, settings.models.home
    entry = Repository(home).get(model)
    if entry.info.kind != "decoder":
        raise ConfigError(f"{model} is no decoder: slots and step tokens are a decoder's")
    entry = served(own, entry)
    machine, console = host(), Console(highlight=False, markup=False)
    untuned = filled_decoder(own, entry, home / "none", machine)
    start = Setting(untuned.num_slots, untuned.step_tokens)
    paces = {QosClass.REALTIME: own.realtime_inter_token_ms, QosClass.NORMAL: own.normal_inter_token_ms}
    inter_token_s = {int(qos): pace_ms / 1000 for qos, pace_ms in paces.items() if pace_ms}
    load = Load(streams, prompt_tokens, answer_tokens, seconds, inter_token_s)
    path = profile_path(home, machine.cpu.architecture(own.threads or machine.cpu.num_threads))
    engine = load_engine(own, entry)
    try:
        if prompt_tokens + answer_tokens > engine.spec.context_tokens:
            raise ConfigError(f"{prompt_tokens} and {answer_tokens} tokens are over {model}'s context")
        console.print(f"from {_words(start)}; {streams} streams, {prompt_tokens} in, {answer_tokens} out")
        tuned = search_best(
            engine,
            entry.info.eos_token_ids,
            load,
            start,
            trials=trials,
            report=lambda tried: console.print(_line(tried)),
        )
    finally:
        engine.close()
    console.print(_verdict(tuned))
    if keep:
        measured = tuned.as_measured(entry.info.digest)
        write_measured(path, entry.info.name, entry.precision.name.lower(), measured)
        console.print(f"written to {path}" if measured else f"{path} has nothing on {model}: the table's values count")
    if json_file is not None:
        json_file.write_text(json.dumps(asdict(tuned) | {"improved": tuned.improved}, indent=1), encoding="utf-8")


def _line(tried: Tried) -> str:
    pair = f"{median(each.best for each in tried.pairs):.0f} → {median(each.candidate for each in tried.pairs):.0f}"
    verdict = "better" if tried.better else "no better"
    return f"  {_words(tried.candidate)}: {pair} tokens/s ({tried.gain:+.1%}, {len(tried.pairs)} pairs), {verdict}"


def _verdict(tuned: Tuned) -> str:
    if tuned.improved:
        before, after = (median(getattr(pair, name) for pair in tuned.final) for name in ("best", "candidate"))
        return (
            f"before {_words(tuned.start)}: {before:.0f} tokens/s\n"
            f"after  {_words(tuned.best)}: {after:.0f} tokens/s ({after / before - 1:+.1%})"
        )
    measured = f"{len(tuned.tried)} candidates measured"
    return f"{_words(tuned.start)} cannot be improved by {LEAST_GAIN:.0%} on this machine: {measured}"


def _words(setting: Setting) -> str:
    return f"{setting.num_slots} slots, {setting.step_tokens} step tokens"
