"""CPU stages before the device: chat template, tokenise; and back to text."""
