"""The engine store under what goes wrong: several builders, dead builders, damaged files, disks that refuse."""

import errno
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import EngineNotReady, InvalidRequest, Unavailable
from headrace.executor.tensorrt.store import EngineKey, EngineStore

KEY = EngineKey("digest", "tensorrt_rtx", "1.7", "sm_80", "fp16", ({"ids": ((1, 1), (4, 8), (4, 8))},))
PATIENCE_S = 60.0


def writes(content: bytes = b"engine"):
    return lambda path: path.write_bytes(content)


def never(path: Path) -> None:
    raise AssertionError("built again")


def test_an_engine_is_built_once_and_found_by_all_that_it_depends_on(tmp_path: Path) -> None:
    store = EngineStore(tmp_path / "engines")
    assert store.get(KEY) is None
    first = store.get_or_build(KEY, "m.onnx", writes())
    again = store.get_or_build(KEY, "m.onnx", never)
    assert (first.built, again.built) == (True, False)
    assert again.path.read_bytes() == b"engine"
    others = [
        replace(KEY, model_digest="other"),
        replace(KEY, flavour="tensorrt"),
        replace(KEY, flavour_version="1.8"),
        replace(KEY, architecture="sm_86"),
        replace(KEY, precision="bf16"),
        replace(KEY, profiles=()),
        replace(KEY, options=replace(KEY.options, refit=True)),
    ]
    assert [store.get(each) for each in others] == [None] * len(others)
    assert len({each.name for each in others}) == len(others)


def damage_byte(engine: Path, record: Path) -> None:
    engine.write_bytes(b"engin3")


def damage_length(engine: Path, record: Path) -> None:
    engine.write_bytes(b"eng")


def lose_engine(engine: Path, record: Path) -> None:
    engine.unlink()


def lose_record(engine: Path, record: Path) -> None:
    record.unlink()


def garble_record(engine: Path, record: Path) -> None:
    record.write_text("{", encoding="utf-8")


def record_of_another(engine: Path, record: Path) -> None:
    data = json.loads(record.read_text(encoding="utf-8"))
    record.write_text(json.dumps(data | {"key": {}}), encoding="utf-8")


@pytest.mark.parametrize(
    "damage", [damage_byte, damage_length, lose_engine, lose_record, garble_record, record_of_another]
)
def test_a_doubtful_engine_is_built_again_and_never_handed_out(tmp_path: Path, damage) -> None:
    store = EngineStore(tmp_path)
    store.get_or_build(KEY, "m", writes())
    damage(tmp_path / f"{KEY.name}.engine", tmp_path / f"{KEY.name}.json")
    assert store.get(KEY) is None
    again = store.get_or_build(KEY, "m", writes(b"new one"))
    assert again.built
    assert again.path.read_bytes() == b"new one"


def test_a_build_that_fails_leaves_nothing_and_does_not_lock(tmp_path: Path) -> None:
    store = EngineStore(tmp_path)

    def fails(path: Path) -> None:
        path.write_bytes(b"half")
        raise InvalidRequest("no such operator")

    with pytest.raises(InvalidRequest):
        store.get_or_build(KEY, "m", fails)
    with pytest.raises(EngineNotReady, match="no engine was built for sm_80 in fp16"):
        store.get_or_build(KEY, "m", lambda path: None)
    assert [path.name for path in tmp_path.iterdir()] == ["locks"]
    assert store.get_or_build(KEY, "m", writes()).built


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    store, waits, begun, built = EngineStore(tmp_path), threading.Event(), threading.Event(), []

    def slow(path: Path) -> None:
        begun.set()
        assert waits.wait(PATIENCE_S)  # until the other has been told to wait
        built.append(1)
        path.write_bytes(b"engine")

    found = []
    first = threading.Thread(target=lambda: found.append(store.get_or_build(KEY, "m", slow)))
    first.start()
    assert begun.wait(PATIENCE_S)
    found.append(EngineStore(tmp_path).get_or_build(KEY, "m", never, waiting=waits.set))
    first.join(PATIENCE_S)
    assert len(built) == 1
    assert sorted(each.built for each in found) == [False, True]


def test_who_waits_too_long_is_told(tmp_path: Path) -> None:
    store, done, begun = EngineStore(tmp_path), threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        begun.set()
        done.wait(PATIENCE_S)
        path.write_bytes(b"engine")

    builder = threading.Thread(target=store.get_or_build, args=(KEY, "m", slow))
    builder.start()
    assert begun.wait(PATIENCE_S)
    with pytest.raises(Unavailable, match="another process has been building"):
        store.get_or_build(KEY, "m", never, timeout_s=0.05)
    done.set()
    builder.join(PATIENCE_S)


_HANG = """
import sys, time
from pathlib import Path
from headrace.executor.tensorrt.store import EngineKey, EngineStore

def half(path):
    path.write_bytes(b"half an engine")
    print("begun", flush=True)
    time.sleep(600)

EngineStore(Path(sys.argv[1])).get_or_build(eval(sys.argv[2]), "m", half)
"""


def test_after_a_builder_was_killed_the_next_builds(tmp_path: Path) -> None:
    root, key = tmp_path / "engines", replace(KEY, profiles=())
    shown = (
        f"EngineKey({', '.join(map(repr, (key.model_digest, key.flavour, key.flavour_version)))}, 'sm_80', 'fp16', ())"
    )
    command = (sys.executable, "-c", _HANG, str(root), shown)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    store = EngineStore(root)
    assert store.get(key) is None
    assert store.engines() == []
    assert store.get_or_build(key, "m", writes()).path.read_bytes() == b"engine"
    assert not list(root.glob("tmp-*"))


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "is full"), (errno.EROFS, "may only be read"), (errno.EIO, "cannot be written")],
)
def test_a_disk_that_refuses_is_one_line(tmp_path: Path, number: int, words: str) -> None:
    def refused(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(Unavailable, match=words) as caught:
        EngineStore(tmp_path).get_or_build(KEY, "m", refused)
    assert str(tmp_path) in caught.value.message


def test_a_store_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "engines").write_text("a file", encoding="utf-8")
    with pytest.raises(Unavailable, match="cannot be written"):
        EngineStore(tmp_path / "engines").get_or_build(KEY, "m", never)


def test_the_least_lately_used_go_where_the_store_is_full(tmp_path: Path) -> None:
    store = EngineStore(tmp_path, most_bytes=25)
    keys = [replace(KEY, architecture=f"sm_{number}") for number in (80, 86, 89)]
    for age, key in enumerate(keys[:2]):
        store.get_or_build(key, "m", writes(b"x" * 10))
        os.utime(tmp_path / f"{key.name}.json", (1000 + age, 1000 + age))
    assert store.get(keys[0]) is not None  # used: the other is now the oldest
    store.get_or_build(keys[2], "m", writes(b"x" * 10))
    assert [store.get(key) is not None for key in keys] == [True, False, True]


def test_an_engine_over_the_bound_is_kept_while_it_is_wanted(tmp_path: Path) -> None:
    store = EngineStore(tmp_path, most_bytes=5)
    assert store.get_or_build(KEY, "m", writes(b"x" * 10)).path.is_file()
    assert [each.name for each in store.prune(0)] == [KEY.name]
    assert store.engines() == []
