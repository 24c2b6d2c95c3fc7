"""A Plan as a program of torch: one Python file with torch's own DTensor, fully_shard, DistributedDataParallel or pipelining."""

from regista.frameworks.split import TorchSplit, Way, torch_split
from regista.frameworks.torch_file import torch_file

__all__ = ["TorchSplit", "Way", "torch_file", "torch_split"]
