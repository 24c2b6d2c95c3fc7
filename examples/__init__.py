"""Three complete trainings, each beside the same training in plain PyTorch on one device: ``python -m examples``."""
