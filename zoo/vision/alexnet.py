"""AlexNet in its one-column form: five convolutions, then three wide layers that hold 96% of the parameters.

Channels 64, 192, 384, 256, 256, hidden 4096.   [Krizhevsky 2014, "One weird trick", arXiv 1404.5997]

The paper's trick is what a planner should find here: split the batch of the convolutions and the features of the wide layers.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import Program
from zoo.vision.images import classifier

__all__ = ["AlexNet", "alexnet"]


class AlexNet(nn.Module):
    """Images (batch, 3, image, image) -> logits (batch, classes); ``width`` channels first, 64 of them per hidden feature."""

    def __init__(self, width: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        first, second, third, last, hidden = width, 3 * width, 6 * width, 4 * width, 64 * width
        self.features = nn.Sequential(
            nn.Conv2d(3, first, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(second, third, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(third, last, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(last, last, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.fc1 = nn.Linear(last * 6 * 6, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.features(x)).flatten(1)
        x = self.fc1(F.dropout(x, self.dropout, self.training)).relu()
        logits: Tensor = self.fc3(self.fc2(F.dropout(x, self.dropout, self.training)).relu())
        return logits


def alexnet(
    batch: int = 128,
    image: int = 224,
    classes: int = 1000,
    width: int = 64,
    optimizer: str = "sgd",
    seed: int = 0,
    dropout: float = 0.0,
) -> Program:
    """AlexNet on random images; 61,100,840 parameters by default.

    Args:
        batch: global batch.
        image: height and width, at least 63.
        classes: of the classifier.
        width: channels of the first convolution; all others follow it.
        optimizer: "sgd" or "adamw".
        dropout: rate before each of the first two wide layers (the paper: 0.5).
    """
    return classifier(
        "alexnet",
        lambda: AlexNet(width, classes, dropout),
        batch=batch,
        image=image,
        classes=classes,
        optimizer=optimizer,
        seed=seed,
    )
