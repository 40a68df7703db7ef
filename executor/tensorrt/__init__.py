"""Engine files for TensorRT and TensorRT for RTX: built from ONNX, one an architecture and precision, and kept."""
