"""Runs inside the converter's environment, not in Headrace's: exports a decoder to OpenVINO, eight bits a
weight, and computes its logits.

    python torch_export.py SOURCE TARGET

reads TARGET/probes.json (lists of token ids), writes TARGET/logits.npz, the graph in float32 in TARGET/whole, and
the one of eight bits in TARGET, each as openvino_model.xml/.bin.
"""

import json
import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    import nncf
    import numpy as np
    import openvino
    import torch
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig
    from transformers import AutoModelForCausalLM

    probes = json.loads((target / "probes.json").read_text(encoding="utf-8"))
    # never the model's own code, nor pickled weights; unsaid, the library would ask on the terminal
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    ).eval()
    with torch.no_grad():
        logits = [model(torch.tensor([probe])).logits[0].numpy() for probe in probes]
    np.savez(target / "logits.npz", **{str(index): each for index, each in enumerate(logits)})
    del model
    whole = target / "whole"
    task, dtype = "text-generation-with-past", OVConfig(dtype="fp32")
    main_export(str(source), str(whole), task=task, ov_config=dtype, convert_tokenizer=False, trust_remote_code=False)
    graph = openvino.Core().read_model(whole / "openvino_model.xml")
    compressed = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(compressed, target / "openvino_model.xml", compress_to_fp16=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
