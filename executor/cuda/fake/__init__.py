"""CUDA's driver without a device: the state that it keeps, and its errors for each misuse. For tests and for checking
a real one against it."""
