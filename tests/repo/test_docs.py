"""What the documentation names exists: dotted names, links, paths; and decisions are in form."""

import importlib
import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from headrace.chassis import signals
from headrace.gateway import output_check
from headrace.preprocess.screen import registry

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]
ADRS = sorted((ROOT / "docs" / "adr").glob("*.md"))

DOTTED = re.compile(r"\bheadrace(?:\.[A-Za-z_]\w*)+")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)+/?")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
FILES = {"headrace.toml", *(path.name for path in (ROOT / "deploy" / "systemd").iterdir())}
MADE_HERE = {"build", "dist", "src/headrace.egg-info"}


def unknown_names(text: str) -> list[str]:
    """Dotted headrace.* names that are no module, attribute, signal, proto symbol or entry point group."""
    known = {value for value in vars(signals).values() if isinstance(value, str)}
    known |= {registry.GROUP, output_check.GROUP, *FILES}
    return [name for name in DOTTED.findall(text) if name not in known and not _is_python(name) and not _is_proto(name)]


def _is_python(name: str) -> bool:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # the module exists and does not import
            continue
        for part in parts[split:]:
            if not hasattr(owner, part) and part not in getattr(owner, "__annotations__", {}):
                return False
            owner = getattr(owner, part, None)
        return True
    return False


def _is_proto(name: str) -> bool:
    for service in ("gateway", "preprocess", "scheduler", "executor", "types"):
        importlib.import_module(f"headrace.api.{service}.v1.{service}_pb2")
    pool = descriptor_pool.Default()
    for find in (pool.FindFileContainingSymbol, pool.FindMethodByName):
        try:
            find(name)
        except KeyError:
            continue
        return True
    return name in {f"headrace.{folder.name}.v1" for folder in (ROOT / "protos").iterdir()}


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative link targets that are not there; an anchor must be a heading of its page."""
    broken = []
    for target in (first or second for first, second in LINK.findall(CODE.sub("", text))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        page = folder / path
        page_text = (
            text if not path else page.read_text(encoding="utf-8") if page.suffix == ".md" and page.is_file() else ""
        )
        if (path and not page.exists()) or (
            anchor and anchor not in {_slug(heading) for heading in HEADING.findall(page_text)}
        ):
            broken.append(target)
    return broken


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def missing_paths(text: str) -> list[str]:
    """Paths in code spans that begin at the top of this tree and lead nowhere."""
    top = {path.name for path in ROOT.iterdir() if path.name not in MADE_HERE}
    words = (word for code in CODE.findall(text) for word in code.strip("`").split())
    paths = (word for word in words if PATH.fullmatch(word) and word.split("/")[0] in top)
    return [path for path in paths if not any(ROOT.glob(path.rstrip("/")))]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", DOCS, ids=_name)
def test_dotted_names_exist(page: Path) -> None:
    assert unknown_names(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_resolve(page: Path) -> None:
    assert broken_links(page.read_text(encoding="utf-8"), page.parent) == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_paths_exist(page: Path) -> None:
    assert missing_paths(page.read_text(encoding="utf-8")) == []


def test_decisions_are_numbered_in_form_and_listed() -> None:
    numbers = [int(path.name.partition("-")[0]) for path in ADRS]
    assert numbers == sorted(set(numbers))
    architecture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for number, path in zip(numbers, ADRS, strict=True):
        assert path.name.startswith(f"{number:04d}-"), path.name
        headings = HEADING.findall(path.read_text(encoding="utf-8"))
        assert headings[0].startswith(f"{number}. "), path.name
        assert headings[1:] == ["Context", "Decision", "Consequences"], path.name
        assert f"(adr/{path.name})" in architecture, path.name


def test_the_checks_find_faults() -> None:
    good = (
        "`headrace.core.errors.QueueFull.reason`, `headrace.request.id`, `headrace.gateway.v1.GatewayService.Generate`"
    )
    assert unknown_names(good) == []
    bad = [
        "headrace.core.errors.Nothing",
        "headrace.nowhere",
        "headrace.core.errors.QueueFull.colour",
        "headrace.gateway.v1.No",
    ]
    assert unknown_names(", ".join(bad)) == bad
    assert broken_links(
        "[a](adr) [b](nowhere.md) [c](https://example.org) `[d](code)` [e](#top)\n# Top", ROOT / "docs"
    ) == ["nowhere.md"]
    assert broken_links("[e](#top)", ROOT) == ["#top"]
    assert missing_paths("`core/errors.py core/nothing.py` and `protos/*/v1` `protos/*/v9` application/grpc") == [
        "core/nothing.py",
        "protos/*/v9",
    ]
