"""`headrace generate`: one question, its answer streamed to the terminal."""

import asyncio
from pathlib import Path
from typing import Annotated, Unpack

import typer
from rich.console import Console

from headrace.chassis.config import load_settings
from headrace.cli.keys import ApiKey
from headrace.cli.reach import reaching, tls
from headrace.client import AsyncClient, Message, Piece
from headrace.client.values import CallOptions, OnMiss, PrecisionName, Qos
from headrace.core.errors import EngineFault
from headrace.core.role import Role


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on with, or with --chat the message to answer.")],
    qos: Annotated[Qos, typer.Option("--class", help="Who goes first when not all can.")] = "normal",
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")] = False,
    model: Annotated[str, typer.Option(help="A model that the suite serves.")] = "smollm2",
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most probable token each time.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the most probable tokens of this share.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from this many most probable tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Answer in JSON of this schema.")
    ] = None,
    json_object: Annotated[bool, typer.Option("--json-object", help="Answer with a JSON object.")] = False,
    regex: Annotated[str | None, typer.Option(help="Answer with what this matches as a whole.")] = None,
    choice: Annotated[list[str] | None, typer.Option(help="Answer with this; give it for each choice.")] = None,
    grammar: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Lark or GBNF for the answer.")
    ] = None,
    sla_total_ms: Annotated[int | None, typer.Option(metavar="MS", help="Hear of the answer by then.")] = None,
    sla_first_token_ms: Annotated[int | None, typer.Option(metavar="MS", help="See it begin by then.")] = None,
    on_miss: Annotated[OnMiss | None, typer.Option(help="Answer in part and go on, fail, or just go on.")] = None,
    precision: Annotated[PrecisionName | None, typer.Option(help="Or the nearest that holds more.")] = None,
    cacheable: Annotated[
        bool, typer.Option("--cacheable", help="Take what the same request was answered before, or keep it.")
    ] = False,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The gateway; default: as set.")] = None,
    api_key: ApiKey = None,
) -> None:
    """Ask a running suite, and see the answer as it is made."""
    given = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or None,
        "json_schema": json_schema and json_schema.read_text(encoding="utf-8"),
        "json_object": json_object or None,
        "regex": regex,
        "choice": choice or None,
        "grammar": grammar and grammar.read_text(encoding="utf-8"),
        "sla_total_ms": sla_total_ms,
        "sla_first_token_ms": sla_first_token_ms,
        "on_miss": on_miss,
        "precision": precision,
        "cacheable": cacheable or None,
    }
    options = CallOptions(**{name: value for name, value in given.items() if value is not None}, qos=qos)  # type: ignore[typeddict-item]
    where = address or load_settings().gateway.listen
    asyncio.run(ask(where, model, prompt, chat=chat, api_key=api_key, **options))


async def ask(
    address: str, model: str, prompt: str, *, chat: bool, api_key: str | None = None, **options: Unpack[CallOptions]
) -> str:
    """Streams one answer to standard output, then how it ended to standard error; returns the request's id.

    Raises what the gateway answers; Unavailable with how to start a suite where nobody listens.
    """
    last: Piece | None = None
    async with AsyncClient(address, api_key=api_key, tls=tls(Role.CLIENT)) as client:
        try:
            whole = [Message("user", prompt)] if chat else prompt
            with reaching(address):
                async for last in client.stream(model, whole, **options):
                    print(last.text, end="", flush=True)
        finally:
            if last is not None:
                print(flush=True)
    if last is None or last.usage is None:
        raise EngineFault("the stream ended before the answer did")
    usage = last.usage
    ending = f"{last.finish_reason.name.lower()}, {usage.prompt_tokens} tokens in, {usage.completion_tokens} out"
    if last.from_cache:
        ending += ", from the cache"
    if last.flagged is not None:
        ending += f", flagged by the screen: {last.flagged.category} ({last.flagged.score:.2f})"
    if last.result is not None:
        ending += f"; the rest: headrace results attach {last.result.handle} --offset {last.result.offset}"
    Console(stderr=True, highlight=False).print(ending, style="dim", soft_wrap=True)
    return last.request_id
