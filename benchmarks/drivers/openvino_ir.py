"""Converts a GGUF into OpenVINO IR with its tokenizer: python -m … GGUF FOLDER. Runs in OpenVINO GenAI's environment.

The conversion is the library's own, the one that our models are made by.
"""

import shutil
import sys
from importlib import import_module
from pathlib import Path


def main(source: Path, target: Path) -> None:
    """Writes `target` whole or not at all."""
    genai = import_module("openvino_genai")
    staged = target.with_name(target.name + ".part")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    copy = staged / "model.gguf"
    shutil.copyfile(source, copy)
    genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)  # writes beside the GGUF
    copy.unlink()
    staged.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
