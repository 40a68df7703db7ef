"""Runs inside the converter's environment, not in Headrace's: exports a decoder to OpenVINO and computes its logits.

    python torch_export.py SOURCE TARGET

reads TARGET/probes.json (lists of token ids), writes TARGET/openvino_model.xml/.bin and TARGET/logits.npz.
"""

import json
import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    import numpy as np
    import torch
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig
    from transformers import AutoModelForCausalLM

    probes = json.loads((target / "probes.json").read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = [model(torch.tensor([probe])).logits[0].numpy() for probe in probes]
    np.savez(target / "logits.npz", **{str(index): each for index, each in enumerate(logits)})
    del model
    weights = OVConfig(quantization_config={"bits": 8, "sym": True})
    main_export(str(source), str(target), task="text-generation-with-past", ov_config=weights, convert_tokenizer=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
