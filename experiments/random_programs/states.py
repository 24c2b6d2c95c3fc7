"""Models of random parts that keep state: averages, queues, teachers, codebooks and counters, which each step reads and changes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.random_programs.sequences import TOKENS, WIDTH, SequenceModel, random_part

__all__ = ["random_model_with_state"]

PLACES, CODES = 12, 6


class _Stateful(nn.Module):
    """A part with buffers ``buffers`` and layers; ``step(self, x)`` reads and changes them."""

    def __init__(self, step: Callable[[_Stateful, Tensor], Tensor], *, layers: int = 0, **buffers: Tensor) -> None:
        super().__init__()
        self.step = step
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return self.step(self, x)


def _centred(m: _Stateful, x: Tensor) -> Tensor:
    made = x - m.center
    with torch.no_grad():
        m.center.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
    return made


def _centred_anew(m: _Stateful, x: Tensor) -> Tensor:
    """By what the step has just made of it."""
    m.center = torch.lerp(m.center, x.detach().mean((0, 1)), 0.1)
    return x - m.center


def _scaled(m: _Stateful, x: Tensor) -> Tensor:
    m.seen += 1
    with torch.no_grad():
        m.scale.lerp_(x.square().mean(), 1 / m.seen.to(x.dtype).clamp(max=10))
    return x / (m.scale + 0.1).sqrt()


def _previous(m: _Stateful, x: Tensor) -> Tensor:
    made = x * torch.sigmoid(m.last)
    m.last.copy_(x.detach()[-1])
    return made


def _exchanged(m: _Stateful, x: Tensor) -> Tensor:
    made = x * m.low + m.high
    m.low, m.high = m.high, 0.9 * m.low
    return made


def _queued(m: _Stateful, x: Tensor) -> Tensor:
    """Attends to what past batches have left, and leaves its own at the next places."""
    query = m.layers[0](x)
    past = m.queue.clone()
    made = F.softmax(query @ past.t(), -1) @ past
    with torch.no_grad():
        keys = m.layers[0](x).mean(1)
        m.queue[(m.place + torch.arange(len(keys))) % PLACES] = keys
        m.place.add_(len(keys)).remainder_(PLACES)
    return made


def _taught(m: _Stateful, x: Tensor) -> Tensor:
    student, teacher = m.layers
    made: Tensor = student(x) * torch.tanh(teacher(x)).detach()
    with torch.no_grad():
        for trained, following in zip(student.parameters(), teacher.parameters(), strict=True):
            following.data.mul_(0.9).add_(trained.data, alpha=0.1)
    return made


def _copied(m: _Stateful, x: Tensor) -> Tensor:
    """A frozen copy of a trained layer, overwritten with the layer's weights in every step."""
    student, teacher = m.layers
    made: Tensor = student(x) - teacher(x).detach()
    for trained, following in zip(student.parameters(), teacher.parameters(), strict=True):
        following.data.copy_(trained.data)
    return made


def _quantized(m: _Stateful, x: Tensor) -> Tensor:
    """By the nearest of a few codes, which follow what is near them [van den Oord et al. 2017]."""
    rows = x.reshape(-1, WIDTH)
    nearest = F.one_hot(torch.cdist(rows.detach(), m.codes).argmin(-1), CODES).to(x.dtype)
    made = (nearest @ m.codes).view_as(x)
    with torch.no_grad():
        m.sizes.mul_(0.8).add_(nearest.sum(0), alpha=0.2)
        m.sums.mul_(0.8).add_(nearest.t() @ rows, alpha=0.2)
        m.codes.copy_(m.sums / (m.sizes + 0.1).unsqueeze(-1))
    return x + (made - x).detach()


def _flagged(m: _Stateful, x: Tensor) -> Tensor:
    return x * 2 if m.ready else x


def _chosen(m: _Stateful, x: Tensor) -> Tensor:
    chosen = x[..., m.mask]
    return chosen.sum(-1, keepdim=True) * x


def _counted(m: _Stateful, x: Tensor) -> Tensor:
    m.count = m.count + 1
    return x / m.count.to(x.dtype)


def _shifted(m: _Stateful, x: Tensor) -> Tensor:
    """Its state is that of the last sample's tokens, one token on."""
    made = torch.cumsum(x, 1) / TOKENS + m.state
    m.state = torch.cat([x.detach()[-1, 1:], m.state[:1]])
    return made


def _power(m: _Stateful, x: Tensor) -> Tensor:
    """One step of the power method, whose vector is kept, as spectral norms have it."""
    weight = m.layers[0].weight
    with torch.no_grad():
        m.left = F.normalize(weight @ m.right, dim=0)
        m.right.copy_(F.normalize(weight.t() @ m.left, dim=0))
    return F.linear(x, weight / torch.dot(m.left, weight @ m.right))


_PARTS: dict[str, Callable[[], nn.Module]] = {
    "center": lambda: _Stateful(_centred, center=torch.zeros(WIDTH)),
    "center anew": lambda: _Stateful(_centred_anew, center=torch.zeros(WIDTH)),
    "scale": lambda: _Stateful(_scaled, scale=torch.ones(()), seen=torch.tensor(0)),
    "previous": lambda: _Stateful(_previous, last=torch.zeros(TOKENS, WIDTH)),
    "exchange": lambda: _Stateful(_exchanged, low=torch.randn(WIDTH), high=torch.randn(WIDTH)),
    "queue": lambda: _Stateful(_queued, layers=1, queue=torch.randn(PLACES, WIDTH), place=torch.zeros(1, dtype=torch.long)),
    "teacher": lambda: _frozen_last(_Stateful(_taught, layers=2)),
    "teacher copied": lambda: _frozen_last(_Stateful(_copied, layers=2)),
    "codebook": lambda: _codebook(),
    "flag": lambda: _Stateful(_flagged, ready=torch.tensor(True)),
    "mask": lambda: _Stateful(_chosen, mask=torch.arange(WIDTH) % 3 == 0),
    "count": lambda: _Stateful(_counted, count=torch.tensor(0)),
    "shift": lambda: _Stateful(_shifted, state=torch.zeros(TOKENS, WIDTH)),
    "power method": lambda: _Stateful(
        _power, layers=1, left=F.normalize(torch.randn(WIDTH), dim=0), right=F.normalize(torch.randn(WIDTH), dim=0)
    ),
}


def _frozen_last(part: _Stateful) -> _Stateful:
    part.layers[-1].requires_grad_(False)
    return part


def _codebook() -> _Stateful:
    codes = torch.randn(CODES, WIDTH)
    return _Stateful(_quantized, codes=codes, sums=codes.clone(), sizes=torch.ones(CODES))


def random_model_with_state(seed: int) -> SequenceModel:
    """Two to four parts with state among as many without; same seed, same model."""
    random = Random(seed)
    torch.manual_seed(seed)
    with_state = random.choices(list(_PARTS), k=random.randint(2, 4))
    made = [(name, _PARTS[name]()) for name in with_state] + [random_part(random) for _ in with_state]
    random.shuffle(made)
    return SequenceModel({f"{number} {name}": part for number, (name, part) in enumerate(made)})
