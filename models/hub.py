"""Takes a model from the Hugging Face hub: of all that a repository holds, one format's weights and the texts."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from headrace.core.errors import InvalidRequest, Unavailable
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


def snapshot(hub: Hub, folder: Path) -> Path:
    """Downloads the wanted files of one commit into a folder. Raises Unavailable, or InvalidRequest of wanted_files."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        info = HfApi().model_info(hub.repository, revision=hub.revision or None)
        files = wanted_files([each.rfilename for each in info.siblings or []])
        snapshot_download(hub.repository, revision=info.sha, local_dir=folder, allow_patterns=files)
    except InvalidRequest as error:
        raise InvalidRequest(f"{hub} cannot be added: {error.message}", field="source") from error
    except Exception as error:  # the library lets its HTTP client's errors through, and changes clients
        raise Unavailable(
            f"{hub} cannot be downloaded: {(str(error).strip() or repr(error)).splitlines()[0]}"
        ) from error
    return folder
