"""A GPT learns to predict the next character of Python's help texts.  Its plan is a pipeline of two stages with four micro-batches.

regista train examples/char_gpt.py:job
"""

from __future__ import annotations

import math
import pydoc_data.topics

import torch
from torch import Tensor, nn

import regista

SEQ, BATCH, WIDTH, LAYERS, HEADS = 64, 32, 96, 4, 4
CLIP_NORM = 1.0
ALPHABET = [chr(code) for code in range(32, 127)] + ["\n"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        q, k, v = (t.view(batch, seq, HEADS, width // HEADS).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
        return x + self.mlp(self.norm2(x))


class CharGpt(nn.Module):
    """Characters [batch, seq] -> what comes next, [batch, len(ALPHABET), seq]."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(SEQ, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


def text() -> Tensor:
    """All help topics, one after another, as numbers of ALPHABET; other characters are left out."""
    number_of = {character: number for number, character in enumerate(ALPHABET)}
    topics = pydoc_data.topics.topics
    return torch.tensor([number_of[c] for name in sorted(topics) for c in topics[name] if c in number_of])


def windows(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Samples of SEQ characters, and the same one further."""
    count = (len(tokens) - 1) // SEQ
    return tokens[: count * SEQ].view(count, SEQ), tokens[1 : count * SEQ + 1].view(count, SEQ)


def build(steps: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Module, optimizer with two groups, and a schedule with warm-up."""
    torch.manual_seed(0)
    module = CharGpt()
    matrices = [p for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    warmup = max(1, steps // 10)

    def share(step: int) -> float:
        return (step + 1) / warmup if step < warmup else 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup))

    return module, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def job(steps: int = 500, eval_batches: int = 12) -> regista.TrainJob:
    """The training: the last characters of the text are kept for evaluations."""
    tokens = text()
    held_out = eval_batches * BATCH * SEQ + 1
    train_data, eval_data = windows(tokens[:-held_out]), windows(tokens[-held_out:])
    module, optimizer, schedule = build(steps)
    program = regista.Program(
        module,
        tuple(t[:BATCH] for t in train_data),
        loss=nn.functional.cross_entropy,
        optimizer=optimizer,
        lr_schedule=schedule,
        clip_norm=CLIP_NORM,
        name="char_gpt",
        seed=1,
    )
    return regista.TrainJob(
        program=program,
        train_data=train_data,
        eval_data=eval_data,
        steps=steps,
        eval_every=max(1, steps // 5),
        metrics=("accuracy", "perplexity"),
        cluster="local:2",
        plan={"stages": 2, "micro_batches": 4},
    )
