"""The model repository: what is installed, where its files are, how it came there."""
