"""`headrace screen`: what the screen says of a text, here and now, without a suite."""

import sys
from typing import Annotated

import typer

from headrace.chassis.config import load_settings
from headrace.cli.services import Config
from headrace.core.screening import worst
from headrace.models.repository import Repository
from headrace.preprocess.screen.registry import load_screen


def screen(
    text: Annotated[str, typer.Argument(help="The text to judge; - reads it from standard input.")],
    config: Config = None,
) -> None:
    """Judge a text as a prompt would be: a category or pass, its probability, and the screen that judged."""
    settings = load_settings(config)
    chosen = load_screen(settings.screen.model, Repository(settings.models.home), threads=1)
    windows = chosen.split(sys.stdin.read() if text == "-" else text)
    verdict = worst(chosen.judge(windows))
    print(f"{verdict.category or 'pass'} {verdict.score:.2f} ({verdict.model}, {len(windows)} windows)")
