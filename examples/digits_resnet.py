"""A residual network that reads drawn digits, turned, moved and noisy: data parallel, batch norm over the whole batch.

regista train examples/digits_resnet.py:job
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import regista

SIZE, BATCH = 16, 64
CLIP_NORM = 2.0
_DRAWN = """
.###. ..#.. .###. ####. #..#. ##### .###. ##### .###. .###.
#...# .##.. #...# ....# #..#. #.... #.... ....# #...# #...#
#..## ..#.. ....# .###. #..#. ####. ####. ...#. .###. #...#
#.#.# ..#.. ...#. ....# ##### ....# #...# ..#.. #...# .####
##..# ..#.. ..#.. ....# ...#. ....# #...# ..#.. #...# ....#
.###. .###. ##### ####. ...#. ####. .###. ..#.. .###. .###.
"""


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images [count, 1, SIZE, SIZE] and which digit each one shows: turned by up to 25 degrees, scaled, moved, blurred and noisy."""
    rows = [line.split() for line in _DRAWN.split("\n") if line]
    glyphs = torch.tensor([[[float(dot == "#") for dot in row[digit]] for row in rows] for digit in range(10)])
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    draw = torch.rand(count, 5, generator=generator) * 2 - 1
    angle, scale = draw[:, 0] * 0.44, 1.5 + 0.35 * draw[:, 1]
    turn = torch.stack([angle.cos() * scale, -angle.sin() * scale, draw[:, 2] * 0.35], dim=1)
    lean = torch.stack([angle.sin() * scale, angle.cos() * scale, draw[:, 3] * 0.35], dim=1)
    grid = nn.functional.affine_grid(torch.stack([turn, lean], dim=1), [count, 1, SIZE, SIZE], align_corners=False)
    images = nn.functional.grid_sample(glyphs[labels][:, None], grid, align_corners=False)
    noise = torch.randn(images.shape, generator=generator) * (0.35 + 0.15 * draw[:, 4]).view(-1, 1, 1, 1)
    return images + noise, labels


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if width != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.short(x)).relu()


class ResNet(nn.Module):
    """Images -> scores [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.blocks(self.stem(images)).mean((2, 3))))


def build(steps: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Module, SGD with momentum, and a rate that is lowered twice."""
    torch.manual_seed(0)
    module = ResNet()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    milestones = [steps * 6 // 10, steps * 85 // 100]
    return module, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.2)


def job(steps: int = 240, samples: int = 4096, eval_samples: int = 1024) -> regista.TrainJob:
    """The training; evaluations see digits of another seed."""
    train_data, eval_data = TensorDataset(*digits(samples, seed=1)), TensorDataset(*digits(eval_samples, seed=2))
    module, optimizer, schedule = build(steps)
    program = regista.Program(
        module,
        digits(BATCH, seed=3),
        loss=nn.functional.cross_entropy,
        optimizer=optimizer,
        lr_schedule=schedule,
        clip_norm=CLIP_NORM,
        name="digits_resnet",
        seed=1,
    )
    return regista.TrainJob(
        program=program,
        train_data=DataLoader(train_data, BATCH, shuffle=True, drop_last=True),
        eval_data=eval_data,
        steps=steps,
        eval_every=max(1, steps // 5),
        metrics=("accuracy",),
        cluster="local:2",
        plan={"pins": ["input.*=S(0)"]},
    )
