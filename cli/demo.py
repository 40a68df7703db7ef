"""`headrace demo`: starts the suite, asks a first question in each class, shows a trace, then serves on."""

from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.generate import ask
from headrace.cli.services import Config
from headrace.cli.up import Models, Single, Where, serve, suite_settings
from headrace.cli.waterfall import render
from headrace.client.values import Qos
from headrace.standalone.services import Suite
from headrace.standalone.span_reader import wait_for_trace
from headrace.standalone.spans import default_database
from headrace.standalone.suite import collects_spans

QUESTIONS: dict[Qos, str] = {
    "realtime": "What is the capital of France? Answer in one sentence.",
    "normal": "Explain in one sentence what a water wheel does.",
    "batch": "Write one sentence about rivers.",
}
MAX_TOKENS = 64
TRACE_WAIT_S = 10.0


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the answers instead of serving on.")] = False,
    config: Config = None,
    single: Single = False,
    preprocess: Where = None,
    model: Models = None,
) -> None:
    """Start the suite, ask it a question in each class, show where the last one's time went."""
    settings = suite_settings(config, preprocess, model)
    console = Console(highlight=False)

    async def questions(suite: Suite) -> bool:
        request_id = ""
        for qos, question in QUESTIONS.items():
            console.print(f"\n[bold]{qos}[/]  {question}")
            request_id = await ask(
                suite.gateway, settings.executor.models[0], question, qos=qos, chat=True, max_tokens=MAX_TOKENS
            )
        if collects_spans(settings):
            spans = await wait_for_trace(default_database(settings.models.home), request_id, TRACE_WAIT_S)
            console.print()
            console.print(render(spans, console.width))
        return not once

    raise typer.Exit(serve(settings, single, questions))
