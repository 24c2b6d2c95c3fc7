"""What runs on a device beside something else: the reference on CPUs, PyTorch's own ways, predictions."""

from experiments.gpu.compared.predicted import peaks, predicted, predicted_row
from experiments.gpu.compared.rivals import gpt2, resnet50
from experiments.gpu.compared.transparent import transparency

__all__ = ["gpt2", "peaks", "predicted", "predicted_row", "resnet50", "transparency"]
