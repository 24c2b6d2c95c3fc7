"""A BERT that finds masked words, on the help texts that ship with Python: optimizer state split over the devices (ZeRO 1).

regista train examples/masked_bert.py:job
"""

from __future__ import annotations

import pydoc_data.topics
import re
from collections import Counter

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import regista

SEQ, BATCH, WIDTH, LAYERS, HEADS, WORDS = 32, 32, 96, 2, 4, 1024
CLIP_NORM = 1.0
UNKNOWN, MASK = 0, 1
IGNORED = -100


def sentences() -> Tensor:
    """All help topics as numbers of their WORDS most frequent words and marks, in samples of SEQ."""
    topics = pydoc_data.topics.topics
    words = [word for name in sorted(topics) for word in re.findall(r"[a-z]+|[^\sa-z]", topics[name].lower())]
    frequent = [word for word, _ in sorted(Counter(words).items(), key=lambda entry: (-entry[1], entry[0]))[: WORDS - 2]]
    number_of = {word: number for number, word in enumerate(frequent, start=2)}
    numbers = torch.tensor([number_of.get(word, UNKNOWN) for word in words])
    return numbers[: len(numbers) // SEQ * SEQ].view(-1, SEQ)


def masked(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """15 % of the known words are asked for: of these 80 % are masked, 10 % are another word, 10 % stay.   [Devlin et al. 2019, 3.1]"""
    draw, other = torch.rand(2, *tokens.shape)
    asked = (draw < 0.15) & (tokens != UNKNOWN)
    asked[..., 0] |= ~asked.any(-1)  # every sample asks for a word
    shown = torch.where(asked & (other < 0.8), MASK, tokens)
    shown = torch.where(asked & (other > 0.9), torch.randint(2, WORDS, tokens.shape), shown)
    return shown, torch.where(asked, tokens, IGNORED)


class MaskedWords(Dataset[tuple[Tensor, Tensor]]):
    """Samples whose masks are drawn anew each time they come."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return masked(self._tokens[number])


class Bert(nn.Module):
    """Words [batch, seq] -> scores [batch, WORDS, seq]; the first and the last matrix are one."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(LAYERS)
        )
        self.dense, self.last = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.bias = nn.Parameter(torch.zeros(WORDS))
        nn.init.normal_(self.word.weight, std=0.05)

    def forward(self, words: Tensor) -> Tensor:
        x = self.drop(self.norm(self.word(words) + self.place(torch.arange(words.shape[1], device=words.device))))
        for block in self.h:
            x = block(x)
        x = self.last(nn.functional.gelu(self.dense(x)))
        return (nn.functional.linear(x, self.word.weight) + self.bias).transpose(1, 2)


def loss(scores: Tensor, asked: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, asked, ignore_index=IGNORED)


def build(steps: int) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Module, AdamW, and a rate that rises and falls in straight lines."""
    torch.manual_seed(0)
    module = Bert()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.01)
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warmup, (steps - step) / max(1, steps - warmup)))
    return module, optimizer, schedule


def job(steps: int = 1500, eval_batches: int = 24) -> regista.TrainJob:
    """The training; evaluations always ask for the same words of samples that no step sees."""
    tokens = sentences()
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
    held_out, rest = tokens[order[: eval_batches * BATCH]], tokens[order[eval_batches * BATCH :]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        eval_data = masked(held_out)
    module, optimizer, schedule = build(steps)
    program = regista.Program(
        module,
        tuple(t[:BATCH] for t in eval_data),
        loss=loss,
        optimizer=optimizer,
        lr_schedule=schedule,
        clip_norm=CLIP_NORM,
        name="masked_bert",
        seed=1,
    )
    return regista.TrainJob(
        program=program,
        train_data=MaskedWords(rest),
        eval_data=eval_data,
        steps=steps,
        eval_every=max(1, steps // 5),
        metrics=("accuracy", "perplexity"),
        cluster="local:2",
        plan={"zero": 1},
    )
