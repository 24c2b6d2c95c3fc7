"""Whole trainings: a job is planned once, trained with checkpoints, evaluated on the way, and leaves a table of metrics and a picture."""

from regista.training.job import TrainJob
from regista.training.loop import Trained, train

__all__ = ["TrainJob", "Trained", "train"]
