"""A Plan in torch's words: a Python file with DTensor, fully_shard, DistributedDataParallel or pipelining; layouts as DTensor's placements."""

from regista.frameworks.placements import dtensor_rows, dtensor_text
from regista.frameworks.split import TorchSplit, Way, torch_split
from regista.frameworks.torch_file import torch_file

__all__ = ["TorchSplit", "Way", "dtensor_rows", "dtensor_text", "torch_file", "torch_split"]
