"""OpenVINO's own reading of a GGUF file, in a process of its own: a crash there is an error here.

    python -m headrace.models.gguf_export MODEL.gguf FOLDER

writes openvino_model.xml/.bin into FOLDER, and probes.json: probe text -> the ids that OpenVINO's tokenizer gives.
"""

import json
import subprocess
import sys
from pathlib import Path

from headrace.core.errors import EngineFault

TIMEOUT_S = 3600.0
PROBES = (
    "Hello, world! It's a fine day; we'll see what they've done.",
    "In 2024, 1234567890 items cost $3.50 or 12% more.",
    "def f(x):\n    if x > 0:\n\treturn x**2  # squared\n\n\n",
    "床前明月光，疑是地上霜。",
    "😀👩‍👩‍👧 naïve café ½ ² Ж",
    "  leading, trailing and   inner   spaces  ",
    "\r\n\r\n a\tb",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
)


def export(gguf: Path, folder: Path) -> dict[str, list[int]]:
    """Writes the graph into a folder; returns probe text -> token ids. Raises EngineFault with the last words of it."""
    command = [sys.executable, "-m", "headrace.models.gguf_export", str(gguf), str(folder)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise EngineFault(f"OpenVINO did not finish reading {gguf.name} within {TIMEOUT_S:.0f} s") from None
    if run.returncode:
        words = [line for line in run.stderr.splitlines() if line.strip()][-1:] or [
            f"it ended with code {run.returncode}"
        ]
        raise EngineFault(f"OpenVINO cannot read {gguf.name}: {words[0].strip()}")
    probes: dict[str, list[int]] = json.loads((folder / "probes.json").read_text(encoding="utf-8"))
    return probes


def _main(gguf: Path, folder: Path) -> None:
    import openvino_genai

    link = folder / "source.gguf"  # the graph is written beside the file that is read
    link.symlink_to(gguf)
    pipeline = openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    tokenizer = pipeline.get_tokenizer()
    ids = {text: tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist() for text in PROBES}
    (folder / "probes.json").write_text(json.dumps(ids), encoding="utf-8")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
