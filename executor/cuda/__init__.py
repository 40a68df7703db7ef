"""NVIDIA's driver as the executor calls it: memory that is mapped, pages that are locked, streams and events."""
