"""A model enters the repository whole or not at all, and leaves it at once."""

import shutil
import threading
from pathlib import Path

import pytest

from headrace.core.errors import EngineNotReady, InvalidRequest, ModelNotFound, Unavailable
from headrace.models.manifest import Manifest, verify
from headrace.models.repository import Repository
from headrace.models.store import Store, check_name

MANIFEST = Manifest(
    kind="decoder",
    digest="d" * 64,
    context_tokens=8,
    vocab_size=16,
    eos_token_ids=(1, 2),
    source='a "quoted" path\\with é, \x7f and\nlines',
    license="mit",
    weights="none",
    check={"against": "nothing", "positions": 3},
)


def publish(home: Path, text: str) -> None:
    store = Store(home)
    with store.locked("tiny"), store.staged("tiny") as folder:
        (folder / "weights").write_text(text)
        store.publish("tiny", MANIFEST)


def test_what_is_published_is_read_back(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    entry = Repository(tmp_path).get("tiny")
    assert (entry.source, entry.license, entry.info.eos_token_ids) == (MANIFEST.source, "mit", (1, 2))
    verify(entry)
    assert not list(tmp_path.glob("tmp-*"))


def test_a_second_one_takes_the_place_of_the_first(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    publish(tmp_path, "two")
    assert (tmp_path / "models/tiny/weights").read_text() == "two"
    assert not list(tmp_path.glob("tmp-*"))


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fail() -> None:
        with store.locked("tiny"), store.staged("tiny") as folder:
            (folder / "weights").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert Repository(tmp_path).names() == []
    assert not list(tmp_path.glob("tmp-*"))


def test_leftovers_of_a_dead_writer_are_cleared_and_a_living_ones_are_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("dead", "living"):
        (tmp_path / f"tmp-{name}" / "new").mkdir(parents=True)
    held, done = threading.Event(), threading.Event()

    def live() -> None:
        with Store(tmp_path).locked("living"):
            held.set()
            done.wait(30)

    writer = threading.Thread(target=live)
    writer.start()
    assert held.wait(30)
    store.sweep()
    assert [path.name for path in tmp_path.glob("tmp-*")] == ["tmp-living"]
    with pytest.raises(Unavailable, match="another process"), store.locked("living", timeout_s=0):
        pass
    done.set()
    writer.join(30)
    store.sweep()
    assert not list(tmp_path.glob("tmp-*"))


def test_a_model_whose_replacement_died_between_the_renames_comes_back(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    (tmp_path / "tmp-tiny").mkdir()
    (tmp_path / "models/tiny").rename(tmp_path / "tmp-tiny/old")
    Store(tmp_path).sweep()
    assert (tmp_path / "models/tiny/weights").read_text() == "one"


def test_a_second_writer_says_that_it_waits_and_then_goes_on(tmp_path: Path) -> None:
    held, told, entered = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        assert held.wait(30)
        with Store(tmp_path).locked("tiny", waiting=told.set):
            entered.set()

    writer = threading.Thread(target=second)
    writer.start()
    with Store(tmp_path).locked("tiny"):
        held.set()
        assert told.wait(30)
        assert not entered.is_set()
    writer.join(30)
    assert entered.is_set()


@pytest.mark.parametrize(
    ("free_bytes", "words"), [(0, "pip: no"), (2**40, "OpenVINO: basic_ios::clear: iostream error")]
)
def test_on_a_full_disk_that_is_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, words: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2**40, 0, free_bytes))

    def fail() -> None:
        with Store(tmp_path).staged("tiny"):
            raise RuntimeError(words)

    with pytest.raises(Unavailable, match=r"^the disk that holds .* is full: 'tiny' is not added$"):
        fail()
    assert not list(tmp_path.glob("tmp-*"))


def test_removed_models_are_gone(tmp_path: Path) -> None:
    publish(tmp_path, "one")
    Store(tmp_path).remove("tiny")
    assert Repository(tmp_path).names() == []
    assert not list(tmp_path.glob("tmp-*"))
    with pytest.raises(ModelNotFound):
        Store(tmp_path).remove("tiny")


@pytest.mark.parametrize("damage", ["change", "delete"])
def test_damage_is_said(tmp_path: Path, damage: str) -> None:
    publish(tmp_path, "one")
    weights = tmp_path / "models/tiny/weights"
    weights.write_text("two") if damage == "change" else weights.unlink()
    with pytest.raises(EngineNotReady, match=r"'tiny' is damaged \(weights\)"):
        verify(Repository(tmp_path).get("tiny"))


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "-x", "a b", "x" * 65, "ü", "a\n"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(InvalidRequest, match="no model name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "SmolLM2-135M.Q4_1", "x" * 64, "0"])
def test_legal_names(name: str) -> None:
    assert check_name(name) == name
