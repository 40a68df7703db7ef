"""`headrace models`: add, list, show and remove models.

What needs the `models` extra is imported when it is asked for.
"""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace.chassis.config import load_settings
from headrace.core.errors import EngineNotReady, InvalidRequest
from headrace.core.request import Precision
from headrace.models.manifest import FILE_NAME, verify
from headrace.models.repository import Repository

app = typer.Typer(no_args_is_help=True, help="Add, list, show and remove models.")


def configured_home() -> Path:
    """models.home as the environment says."""
    return load_settings().models.home


Home = Annotated[Path, typer.Option(default_factory=configured_home, help="The folder that holds the models.")]


@app.command()
def add(
    home: Home,
    source: Annotated[str, typer.Argument(help="smollm2, minilm, hf:ORG/NAME[@REVISION], or a file or folder.")],
    name: Annotated[str, typer.Option(help="The name to serve it by; default: the source's own.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a model of this name; make it anew.")] = False,
    precision: Annotated[
        str, typer.Option(metavar="NAMES", help="Further precisions of a decoder: fp32, bf16, or fp32,bf16.")
    ] = "",
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Keep a folder of safetensors as it is, for executor.engine torch.")
    ] = False,
) -> None:
    """Fetch a model, convert it, check it against its source and store it."""
    from headrace.models.add import add as add_model

    if checkpoint:
        from headrace.models.checkpoint import install

        entry = install(home, Path(source), name or Path(source).resolve().name)
        print(
            f"added {entry.info.name} ({entry.info.kind}, {entry.info.context_tokens} tokens of context, a checkpoint)"
        )
        return
    precisions = [_precision(each) for each in precision.split(",") if each]
    with _bars() as progress:
        added = add_model(home, source, progress, name=name, force=force, precisions=precisions)
    info = added.entry.info
    if added.changed:
        print(f"added {info.name} ({info.kind}, {info.context_tokens} tokens of context) to {added.entry.folder}")
    else:
        print(f"{info.name} is installed already, unchanged")


@app.command(name="list")
def list_models(home: Home) -> None:
    """The installed models."""
    repository = Repository(home)
    names = repository.names()
    table = Table("name", "kind", "context", "precision", "size", "license", box=None, header_style="bold")
    table.add_column("source", overflow="fold")
    for name in names:
        try:
            entry = repository.get(name)
        except EngineNotReady:
            table.add_row(name, "damaged", "", "", "", "", "remove it and add it again")
            continue
        size = sum(path.stat().st_size for path in entry.folder.rglob("*") if path.is_file())
        precisions = ", ".join(each.name.lower() for each in (entry.precision, *entry.variants))
        context_tokens = str(entry.info.context_tokens)
        cells = (entry.info.kind, context_tokens, precisions, f"{size / 1e6:.0f} MB", entry.license, entry.source)
        table.add_row(name, *cells)
    if names:
        Console(markup=False).print(table)
    else:
        print(f"no models in {repository.root}; try: headrace models add smollm2")


@app.command()
def show(
    home: Home,
    name: Annotated[str, typer.Argument(help="An installed model.")],
    check: Annotated[bool, typer.Option("--verify", help="Compare the files with their checksums.")] = False,
) -> None:
    """What is known of a model."""
    entry = Repository(home).get(name)
    data = tomllib.loads((entry.folder / FILE_NAME).read_text(encoding="utf-8"))
    files = data.pop("files", {})
    checks = {"check": data.pop("check", {})}
    checks |= {f"variants.{variant}": check for variant, check in data.pop("variants", {}).items()}
    checked = {f"{title}.{key}": value for title, check in checks.items() for key, value in check.items()}
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a digest is there to be copied
    for key, value in {"name": name, "folder": entry.folder, **data, **checked}.items():
        table.add_row(key, str(value))
    for file in files:
        table.add_row(
            file, f"{(entry.folder / file).stat().st_size:,} bytes" if (entry.folder / file).exists() else "missing"
        )
    Console(markup=False).print(table)
    if check:
        verify(entry)
        print("all files are whole")


@app.command()
def remove(home: Home, name: Annotated[str, typer.Argument(help="An installed model.")]) -> None:
    """Remove a model."""
    from headrace.models.store import Store

    Store(home).remove(name)
    print(f"removed {name}")


def _precision(name: str) -> Precision:
    try:
        return Precision[name.strip().upper()]
    except KeyError:
        raise InvalidRequest(f"{name!r} is no precision: fp32, bf16", field="precision") from None


@contextmanager
def _bars() -> Iterator[Callable[[str, float | None], None]]:
    """A bar a stage, on standard error."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: float | None) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    bars.update(task, total=1.0, completed=1.0)
                tasks[stage] = bars.add_task(stage, total=None)
            if done is not None:
                bars.update(tasks[stage], total=1.0, completed=done)

        yield report
        for task in tasks.values():
            bars.update(task, total=1.0, completed=1.0)
