"""What runs models on each kind of device: which packages, and how a model is brought there."""
