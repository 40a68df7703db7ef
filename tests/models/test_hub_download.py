"""`models add hf:ORG/NAME` against a server on this machine that answers as the hub does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from headrace.core.errors import EngineFault, InvalidRequest, Unavailable
from headrace.models.add import add as add_model
from headrace.models.hub import snapshot
from headrace.models.repository import Repository
from headrace.models.source import Hub

COMMIT = "c" * 40
SECRET = "hf_secret"
TINY = Hub("org/tiny", "")


def silent(stage: str, done: float | None) -> None:
    """A progress that nobody watches."""


class FakeHub:
    """Serves one folder as org/tiny. `cut` files break off halfway once; `swapped` ones are not what is listed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut: set[str] = set()
        self.swapped: set[str] = set()
        self.private = self.gated = False
        self.asked: list[tuple[str, str]] = []  # path, Range

    def listing(self) -> list[dict[str, Any]]:
        """As the tree endpoint lists files: weights in large file storage."""
        files = []
        for path in sorted(each for each in self.folder.rglob("*") if each.is_file()):
            data = path.read_bytes()
            name = path.relative_to(self.folder).as_posix()
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": oid}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            files.append(entry)
        return files

    def info(self) -> dict[str, Any]:
        siblings = []
        for entry in self.listing():
            sibling = {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"]}
            if lfs := entry.get("lfs"):
                sibling["lfs"] = {"sha256": lfs["oid"], "size": lfs["size"], "pointerSize": 134}
            siblings.append(sibling)
        return {"_id": "1", "id": TINY.repository, "sha": COMMIT, "siblings": siblings}


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append((path, self.headers.get("Range", "")))
            if hub.gated:
                return self._refuse(403, "GatedRepo")
            if hub.private and self.headers.get("Authorization") != f"Bearer {SECRET}":
                return self._refuse(401, "RepoNotFound")
            api, resolve = f"/api/models/{TINY.repository}", f"/{TINY.repository}/resolve/{COMMIT}/"
            if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                return self._send(200, json.dumps(hub.info()).encode(), {})
            if path.startswith(f"{api}/revision/"):
                return self._refuse(404, "RevisionNotFound")
            if path == f"{api}/tree/{COMMIT}":
                return self._send(200, json.dumps(hub.listing()).encode(), {})
            if path.startswith(resolve):
                return self._file(path.removeprefix(resolve))
            return self._refuse(404, "RepoNotFound")

        def _file(self, name: str) -> None:
            entry = next(each for each in hub.listing() if each["path"] == name)
            data = (hub.folder / name).read_bytes()
            if name in hub.swapped:
                data = bytes(byte ^ 1 for byte in data)
            headers = {"ETag": f'"{entry.get("lfs", entry)["oid"]}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(206 if start else 200, data[start:], headers, cut=name in hub.cut and self.command == "GET")
            if self.command == "GET":
                hub.cut.discard(name)

        def _refuse(self, status: int, code: str) -> None:
            self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

        def _send(self, status: int, body: bytes, headers: dict[str, str], cut: bool = False) -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = self.close_connection or cut

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    return Handler


@pytest.fixture
def hub(tmp_path: Path, write_bert: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub(write_bert(tmp_path / "upstream"))
    (fake.folder / "pytorch_model.bin").write_bytes(b"the same weights once more")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    # What the library makes of HF_ENDPOINT and HF_HOME when it is imported; a child process reads the variables.
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_of_the_hub_is_added_from_the_shell(tmp_path: Path, hub: FakeHub) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "models", "add", "hf:org/tiny", "--home", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
    assert shown.returncode == 0, shown.stderr
    assert "added tiny (encoder, 64 tokens of context)" in shown.stdout
    entry = Repository(tmp_path).get("tiny")
    assert (entry.source, entry.license) == ("hf:org/tiny", "mit")
    assert not any("pytorch_model.bin" in path for path, _ in hub.asked)


def test_every_part_of_a_download_is_reported_up_to_the_whole(hub: FakeHub) -> None:
    parts: list[float] = []
    snapshot(TINY, parts.append)
    assert parts == sorted(parts)
    assert parts[-1] == 1.0


def test_a_download_that_was_cut_goes_on_where_it_was(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # what has come is written by chunks
    hub.cut.add("model.safetensors")
    assert add_model(tmp_path, "hf:org/tiny", silent).changed
    (again,) = [said for path, said in hub.asked if path.endswith("model.safetensors") and said]
    half = (hub.folder / "model.safetensors").stat().st_size // 2
    assert half - 1024 < int(again.removeprefix("bytes=").removesuffix("-")) <= half


def test_a_model_that_is_here_is_not_downloaded_again(tmp_path: Path, hub: FakeHub) -> None:
    add_model(tmp_path, "hf:org/tiny", silent)
    hub.asked.clear()
    assert not add_model(tmp_path, f"hf:org/tiny@{COMMIT}", silent).changed
    assert not any("/resolve/" in path for path, _ in hub.asked)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_not_what_the_hub_lists_is_named_and_fetched_anew(
    tmp_path: Path, hub: FakeHub, name: str
) -> None:
    hub.swapped.add(name)
    with pytest.raises(EngineFault, match=rf"^hf:org/tiny: {name} came damaged"):
        add_model(tmp_path, "hf:org/tiny", silent)
    assert Repository(tmp_path).names() == []
    hub.swapped.clear()
    assert add_model(tmp_path, "hf:org/tiny", silent).changed


def test_a_private_model_wants_a_token(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private = True
    with pytest.raises(InvalidRequest, match="is not on the hub, or is private: HF_TOKEN"):
        add_model(tmp_path, "hf:org/tiny", silent)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert add_model(tmp_path, "hf:org/tiny", silent).changed


def test_what_the_hub_refuses_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    for text, words in (
        ("hf:org/none", "hf:org/none is not on the hub"),
        ("hf:org/tiny@v9", "org/tiny has no revision 'v9'"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            add_model(tmp_path, text, silent)
    hub.gated = True
    with pytest.raises(InvalidRequest, match="hf:org/tiny is gated: accept its terms"):
        add_model(tmp_path, "hf:org/tiny", silent)


def test_a_repository_without_weights_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(InvalidRequest, match=r"^hf:org/tiny cannot be added: it holds no safetensors, GGUF"):
        add_model(tmp_path, "hf:org/tiny", silent)


def test_nobody_answering_is_one_line(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"^hf:org/tiny cannot be downloaded: ") as caught:
        add_model(tmp_path, "hf:org/tiny", silent)
    assert "\n" not in caught.value.message
