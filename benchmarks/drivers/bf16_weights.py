"""Turns a GGUF decoder into bf16 safetensors and a tokenizer, in the environment of vLLM, which reads them.

Call: python -m … GGUF FOLDER.
A model that transformers loaded from GGUF cannot be saved as it is: its weights move into a fresh one of its config.
"""

import sys
from importlib import import_module
from pathlib import Path


def main(source: Path, target: Path) -> None:
    """Writes `target` whole or not at all."""
    torch, transformers = import_module("torch"), import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, trust_remote_code=False
    )
    for key in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(loaded.config, key):
            delattr(loaded.config, key)
    fresh = transformers.AutoModelForCausalLM.from_config(loaded.config, dtype=torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    staged = target.with_name(target.name + ".part")
    fresh.save_pretrained(staged)
    transformers.AutoTokenizer.from_pretrained(
        source.parent, gguf_file=source.name, trust_remote_code=False
    ).save_pretrained(staged)
    staged.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
