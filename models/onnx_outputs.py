"""Runs inside the environment of ONNX Runtime, not in Headrace's: computes what an ONNX encoder says.

    python onnx_outputs.py MODEL.onnx FOLDER

reads FOLDER/probes.json (lists of token ids), writes the first output of each to FOLDER/outputs.npz.
"""

import json
import sys
from importlib import import_module
from pathlib import Path


def main(model: Path, folder: Path) -> None:
    import numpy as np

    onnxruntime = import_module("onnxruntime")  # not there where types are checked
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = {port.name for port in session.get_inputs()}
    arrays = {}
    for index, probe in enumerate(json.loads((folder / "probes.json").read_text(encoding="utf-8"))):
        ids = np.array([probe], np.int64)
        every = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        arrays[str(index)] = session.run(None, {name: every[name] for name in names})[0][0]
    np.savez(folder / "outputs.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
