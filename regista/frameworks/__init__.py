"""A Plan in the words of frameworks: a Python file of torch's means, DTensor's placements, settings of Megatron-LM, torchtitan and DeepSpeed."""

from regista.frameworks.job_of_plan import job_for, planned_job
from regista.frameworks.placements import dtensor_rows, dtensor_text
from regista.frameworks.split import TorchSplit, Way, torch_split
from regista.frameworks.torch_file import torch_file

__all__ = ["TorchSplit", "Way", "dtensor_rows", "dtensor_text", "job_for", "planned_job", "torch_file", "torch_split"]
