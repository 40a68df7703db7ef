"""`headrace embed|rerank|classify`: an encoder asked from the terminal."""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.chassis.config import load_settings
from headrace.cli.keys import ApiKey
from headrace.cli.reach import reaching, tls
from headrace.client import Client
from headrace.client.values import EncodeOptions, PoolingName, Qos
from headrace.core.role import Role

Given = TypeVar("Given")

Model = Annotated[str, typer.Option(help="An encoder that the suite serves.")]
Class = Annotated[Qos, typer.Option("--class", help="Who goes first when not all can.")]
Cut = Annotated[bool, typer.Option("--truncate", help="Cut what is too long instead of refusing it.")]
TopN = Annotated[int, typer.Option("--top", metavar="N", help="How many to show; 0: all.")]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The gateway; default: as set.")]


def embed(
    texts: Annotated[list[str], typer.Argument(help="One vector is made of each.")],
    model: Model = "minilm",
    pooling: Annotated[PoolingName | None, typer.Option(help="How tokens' vectors become one.")] = None,
    dimensions: Annotated[int, typer.Option(help="The first so many; 0: all.")] = 0,
    truncate: Cut = False,
    qos: Class = "normal",
    address: Address = None,
    api_key: ApiKey = None,
) -> None:
    """Print each text's vector, a JSON array a line."""
    options = EncodeOptions(truncate=truncate, qos=qos)
    embeddings = _ask(
        address, api_key, lambda client: client.embed(model, texts, pooling=pooling, dimensions=dimensions, **options)
    )
    for vector in embeddings.vectors:
        print(json.dumps([round(value, 7) for value in vector]))


def rerank(
    query: Annotated[str, typer.Argument(help="What is looked for.")],
    documents: Annotated[list[str], typer.Argument(help="Where it may be found.")],
    model: Model = "minilm",
    top: TopN = 0,
    truncate: Cut = False,
    qos: Class = "normal",
    address: Address = None,
    api_key: ApiKey = None,
) -> None:
    """Print the documents, those first that answer the query best."""
    options = EncodeOptions(truncate=truncate, qos=qos)
    ranking = _ask(address, api_key, lambda client: client.rerank(model, query, documents, top_n=top, **options))
    _print((f"{each.score:.4f}", documents[each.index]) for each in ranking.results)


def classify(
    texts: Annotated[list[str], typer.Argument(help="Each of them gets labels.")],
    model: Annotated[str, typer.Option(help="A model with a classification head.")],
    top: TopN = 1,
    truncate: Cut = False,
    qos: Class = "normal",
    address: Address = None,
    api_key: ApiKey = None,
) -> None:
    """Print each text's most probable labels."""
    options = EncodeOptions(truncate=truncate, qos=qos)
    labels = _ask(address, api_key, lambda client: client.classify(model, texts, top_n=top, **options))
    _print(
        (f"{each.score:.4f}", each.label, text)
        for text, found in zip(texts, labels.results, strict=True)
        for each in found
    )


def _ask(address: str | None, api_key: str | None, call: Callable[[Client], Given]) -> Given:
    """Raises what the gateway answers; Unavailable with how to start a suite where nobody listens."""
    address = address or load_settings().gateway.listen
    with Client(address, api_key=api_key, tls=tls(Role.CLIENT)) as client, reaching(address):
        return call(client)


def _print(rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(escape, row))
    Console(highlight=False).print(table)
