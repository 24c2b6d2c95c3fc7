"""Trains the three examples, each beside the same training in plain PyTorch on one device, and writes what came out.

    python -m examples                   all three: examples/results/*.csv, examples/pictures/*.png, experiments/results/examples.csv
    python -m examples char_gpt          one of them
    python -m examples --smoke --out out/examples     a few steps, written elsewhere

Both trainings see the same batches and drop the same elements; what differs is the order in which devices add up.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

import regista
from examples import char_gpt, digits_resnet, masked_bert
from examples.plain import train_plain
from regista.training.history import History
from regista.views.pictures.training import draw_training

HERE = Path(__file__).parent
SUMMARY = HERE.parent / "experiments" / "results" / "examples.csv"
FIRST = 20
"""So many steps are compared loss by loss; training amplifies differences of rounding from step to step."""


@dataclass(frozen=True)
class Example:
    """module: has ``job``, ``build`` and ``CLIP_NORM``.   says: for the picture.   smoke: arguments of ``job`` at the small size."""

    module: ModuleType
    says: str
    smoke: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.module.__name__.rpartition(".")[2]


EXAMPLES = (
    Example(char_gpt, "GPT of characters, pipeline of 2 stages, 4 micro-batches", {"steps": 4, "eval_batches": 2}),
    Example(digits_resnet, "ResNet on drawn digits, data parallel on 2 devices", {"steps": 4, "samples": 256, "eval_samples": 128}),
    Example(masked_bert, "BERT of masked words, ZeRO 1 on 2 devices", {"steps": 4, "eval_batches": 2}),
)


def perform(example: Example, arguments: Mapping[str, int], folder: Path) -> dict[str, object]:
    """Train one example both ways; its tables go to folder/results, its picture to folder/pictures.  Returns its row of the summary."""
    for name in ("results", "pictures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    job = example.module.job(**arguments)
    with tempfile.TemporaryDirectory() as temporary:
        began_s = time.perf_counter()
        trained = regista.train(job, Path(temporary) / "training")
        seconds = time.perf_counter() - began_s
    again = example.module.job(**arguments)  # a DataLoader keeps its place
    began_s = time.perf_counter()
    plain = train_plain(again, *example.module.build(again.num_steps(again.training())), clip_norm=example.module.CLIP_NORM)
    plain_seconds = time.perf_counter() - began_s
    apart = nudged_apart(example, arguments, plain)
    trained.history.save(folder / "results" / f"{example.name}.csv")
    plain.save(folder / "results" / f"{example.name}_one_device.csv")
    histories = {f"plan {trained.plan.plan_id[:8]}": trained.history, "plain PyTorch, one device": plain}
    draw_training(histories, folder / "pictures" / f"{example.name}.png", title=example.says)
    return row(example.name, trained.history, plain) | {
        "nudged_first_steps_apart": apart,
        "plan_id": trained.plan.plan_id,
        "ranks": trained.plan.num_ranks,
        "seconds": round(seconds, 1),
        "one_device_seconds": round(plain_seconds, 1),
        "load": round(os.getloadavg()[0], 1),  # of whatever else the machine did meanwhile
    }


def nudged_apart(example: Example, arguments: Mapping[str, int], plain: History) -> float:
    """How far plain PyTorch lies from itself in the first steps when every other weight is rounded to the next number above."""
    job = example.module.job(**arguments)
    module, *others = example.module.build(job.num_steps(job.training()))
    with torch.no_grad():
        for parameter in module.parameters():
            above = torch.nextafter(parameter, torch.tensor(torch.inf))
            parameter.view(-1)[::2] = above.view(-1)[::2]
    nudged = train_plain(job, module, *others, clip_norm=example.module.CLIP_NORM, steps=min(FIRST, max(plain.rows)))
    return max(_apart(nudged, plain))


def _apart(history: History, other: History) -> list[float]:
    """Relative differences of the steps' losses."""
    losses = other.losses()
    return [abs(loss - losses[step]) / abs(losses[step]) for step, loss in history.losses().items()]


def row(name: str, ours: History, plain: History) -> dict[str, object]:
    """The quality at the end, and how far the losses of the steps lie apart."""
    steps = max(ours.rows)
    apart = _apart(ours, plain)
    end, other_end = ours.evaluation(steps) or {}, plain.evaluation(steps) or {}
    measured: dict[str, object] = {}
    for metric in ("loss", "accuracy", "perplexity"):
        measured |= {metric: end.get(metric, ""), f"one_device_{metric}": other_end.get(metric, "")}
    about = {"python": platform.python_version(), "torch": torch.__version__}
    return {"example": name, "steps": steps, **measured, "first_steps_apart": max(apart[:FIRST]), "apart": max(apart), **about}


def save_rows(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """The summary; rows of other examples that stand there stay."""
    before: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            before = [dict(row) for row in csv.DictReader(file)]
    new = {str(row["example"]): row for row in (*before, *rows)}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(new[example.name] for example in EXAMPLES if example.name in new)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [example.name for example in EXAMPLES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--smoke", action="store_true", help="a few steps; needs --out")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write there instead of over the committed files")
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(names):
        parser.error(f"there is no example {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if args.smoke and args.out is None:
        parser.error("a small size is not written over committed rows; give --out DIR")
    folder = args.out or HERE
    for example in EXAMPLES:
        if not args.names or example.name in args.names:
            done = perform(example, example.smoke if args.smoke else {}, folder)
            save_rows([done], SUMMARY if args.out is None else folder / "results" / "examples.csv")
            print(", ".join(f"{key} {value}" for key, value in done.items() if value != ""), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
