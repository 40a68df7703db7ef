"""Takes a model from the Hugging Face hub: of all that a repository holds, one format's weights and the texts.

They go into the hub library's own cache ($HF_HOME), which other tools share and from which a download that was cut goes
on; HF_TOKEN and HF_ENDPOINT are the library's too.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from headrace.core.errors import EngineFault, HeadraceError, InvalidRequest, Unavailable
from headrace.models.manifest import file_digest
from headrace.models.source import Hub

TEXTS = ("*.json", "*.jinja", "README.md")
POOLING = "1_Pooling/config.json"
# In order of preference: what keeps most of the source, and can be compared with it, first.
WEIGHTS = ("*.safetensors", "*.gguf", "openvino_model.*", "model.onnx*", "onnx/model.onnx*")
DUPLICATES = "consolidated*"  # the same weights once more, in their author's own layout


def wanted_files(names: Sequence[str]) -> list[str]:
    """Which of a repository's files to download. Raises InvalidRequest if no format, or no single GGUF, is there."""
    texts = [name for name in names if name == POOLING or any(_matches(name, pattern) for pattern in TEXTS)]
    for pattern in WEIGHTS:
        weights = [name for name in names if _matches(name, pattern) and not fnmatchcase(name, DUPLICATES)]
        if pattern == "*.gguf" and len(weights) > 1:
            raise InvalidRequest(
                "it holds several GGUF files: download one of them and add it by its path", field="source"
            )
        if weights:
            return weights + texts
    raise InvalidRequest("it holds no safetensors, GGUF, OpenVINO or ONNX model", field="source")


def _matches(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)


def snapshot(hub: Hub, report: Callable[[float], None]) -> Path:
    """The folder with the wanted files of one commit, downloaded where they are not there yet and checked.

    Raises InvalidRequest where there is no such model or none that can be used, Unavailable where the hub does not give
    it now, EngineFault where a file is not the one that the hub lists.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        info = HfApi().model_info(hub.repository, revision=hub.revision or None, files_metadata=True)
        listed = {each.rfilename: each for each in info.siblings or []}
        files = {name: listed[name] for name in wanted_files(list(listed))}
        total_bytes = sum(each.size or 0 for each in files.values())
        folder = Path(
            snapshot_download(
                hub.repository,
                revision=info.sha,
                allow_patterns=list(files),
                tqdm_class=_progress(total_bytes, report),
            )
        )
    except Exception as error:  # the library lets its HTTP client's errors through, and changes clients
        raise _failure(hub, error) from error
    check_files(hub, folder, files)
    return folder


def check_files(hub: Hub, folder: Path, files: Mapping[str, Any]) -> None:
    """Compares what lies in `folder` with the digests that the hub lists; files maps names to its RepoSibling.

    Raises EngineFault that names the others, which are removed so that they are fetched again.
    """
    wrong = [name for name, listed in files.items() if not _is_listed(folder / name, listed)]
    for name in wrong:
        (folder / name).resolve().unlink(missing_ok=True)  # in the cache a snapshot links to its files
        (folder / name).unlink(missing_ok=True)
    if wrong:
        raise EngineFault(
            f"{hub}: {', '.join(wrong)} came damaged and is removed: add the model again to fetch it anew"
        )


def _is_listed(path: Path, listed: Any) -> bool:
    """Large files are listed by their SHA-256, the others as git names them."""
    if not path.is_file():
        return False
    if listed.lfs is not None:
        return bool(file_digest(path) == listed.lfs.sha256)
    data = path.read_bytes()
    return bool(listed.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())


def _failure(hub: Hub, error: Exception) -> HeadraceError:
    from huggingface_hub import errors

    match error:
        case InvalidRequest():
            return InvalidRequest(f"{hub} cannot be added: {error.message}", field="source")
        case errors.GatedRepoError():
            return InvalidRequest(
                f"{hub} is gated: accept its terms on its page, then set HF_TOKEN to a token of yours", field="source"
            )
        case errors.RepositoryNotFoundError():
            return InvalidRequest(f"{hub} is not on the hub, or is private: HF_TOKEN says who asks", field="source")
        case errors.RevisionNotFoundError():
            return InvalidRequest(f"{hub.repository} has no revision {hub.revision!r}", field="source")
    said = (str(error).strip() or repr(error)).splitlines()[0]
    return Unavailable(f"{hub} cannot be downloaded: {said}")


def _progress(total_bytes: int, report: Callable[[float], None]) -> type[Any]:
    """A class of silent progress bars; those that count bytes report which part of all has come."""
    from huggingface_hub.utils.tqdm import tqdm

    class Reporting(tqdm):
        most_bytes = 0.0  # of the bars that count bytes: one counts what is received, one what is written

        def __init__(self, *args: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            self._done_bytes = 0.0
            super().__init__(*args, **(options | {"disable": True}))  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self._done_bytes += n or 0
            if self._counts_bytes and self._done_bytes > Reporting.most_bytes:
                Reporting.most_bytes = self._done_bytes
                report(min(self._done_bytes / max(total_bytes, 1), 1.0))

    return Reporting
