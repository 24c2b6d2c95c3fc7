"""The same model written by several libraries is predicted to take as long in float32, and no model of the zoo to use a device above 75 %.

    OMP_NUM_THREADS=1 python -m experiments.corpus.same_model      needs the extra corpus; writes results/same_model.csv (4 minutes)

ViT-B/16     images of 224 x 224, 64 at a time: torchvision, timm, transformers, the zoo
Llama        two layers of Llama 3 8B and 32,000 tokens of vocabulary, 2 x 2,048 tokens: transformers, the zoo
zoo          every model at its default size

In bf16-mixed, where products on an H100 take a fifteenth of their time, what libraries do otherwise shows: timm has one product for query, key
and value, torchvision one and a copy of what it gave, transformers and the zoo three products.

One device, AdamW, everything simulated; utilisation is that of ``regista simulate`` (MFU over the data sheet's peaks).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

import regista
from experiments.common.unlimited import with_unlimited_memory
from experiments.corpus.libraries import make_ready
from planner.cost import AnalyticCost
from planner.frontend import Program
from planner.frontend.optim.rules import AdamW
from planner.ir.cluster import Cluster
from regista.analysis.outlook import look
from regista.clusters import resolve_cluster
from zoo import ZOO
from zoo.text import token_loss

__all__ = ["DEFAULT", "RESULT", "main", "summary"]

RESULT = Path(__file__).parents[1] / "results/same_model.csv"
DEVICES = ("h100-sxm", "a100-80gb-sxm")
PRECISIONS = ("fp32", "bf16-mixed")
BATCH, SEQ, VOCAB, LAYERS = 64, 2048, 32000, 2
VIT, LLAMA, DEFAULT = "ViT-B/16", "Llama 3 8B, 2 layers", "zoo, default size"


class _Logits(nn.Module):
    """A model of transformers, of one input, whose output is its logits."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self._name = model, name

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(**{self._name: x}).logits
        return logits


def _vit(library: str) -> nn.Module:
    match library:
        case "torchvision":
            made = importlib.import_module("torchvision.models").vit_b_16()
        case "timm":
            made = importlib.import_module("timm").create_model("vit_base_patch16_224", pretrained=False)
        case _:
            parts = importlib.import_module("transformers")
            made = _Logits(parts.ViTForImageClassification(parts.ViTConfig(num_labels=1000)), "pixel_values")
    assert isinstance(made, nn.Module)
    return made.train()


def _llama() -> nn.Module:
    parts = importlib.import_module("transformers")
    config = parts.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=VOCAB,
        max_position_embeddings=SEQ,
        use_cache=False,
    )
    return _Logits(parts.LlamaForCausalLM(config), "input_ids").train()


def programs() -> Iterator[tuple[str, str, Program | str]]:
    """(model, library, program or the name of one)."""
    images = torch.randn(BATCH, 3, 224, 224), torch.randint(0, 1000, (BATCH,))
    for library in ("torchvision", "timm", "transformers"):
        yield VIT, library, Program(_vit(library), images, nn.functional.cross_entropy, AdamW())
    yield VIT, "zoo", f"zoo:vit?batch={BATCH}&attention=fused"
    ids = torch.randint(0, VOCAB, (2, SEQ))
    yield LLAMA, "transformers", Program(_llama(), (ids, ids), token_loss, AdamW())
    yield LLAMA, "zoo", f"zoo:llama3?layers={LAYERS}&vocab={VOCAB}&batch=2&seq={SEQ}"
    for name in sorted(ZOO):
        yield name, DEFAULT, f"zoo:{name}"


def one_device(name: str) -> Cluster:
    """A cluster of one device of a preset's kind, with unlimited memory."""
    return with_unlimited_memory(replace(resolve_cluster(f"{name}:1"), devices_per_node=1))


def main() -> None:
    make_ready()
    rows = []
    for model, library, program in programs():
        for device in DEVICES:
            for precision in PRECISIONS:
                cluster = one_device(device)
                plan = regista.plan(program, cluster, stages=1, mesh=(1,), micro_batches=1, zero=0, recompute=False, precision=precision)
                seen = look(plan, AnalyticCost(cluster))
                rows.append(
                    {
                        "point": f"{model}, {library}, {device}, {precision}",
                        "model": model,
                        "library": library,
                        "device": device,
                        "precision": precision,
                        "sim_step_s": seen.forecast.step_s,
                        "sim_utilisation": seen.mfu,
                    }
                )
                print(f"{model}, {library}, {device}, {precision}: {seen.forecast.step_s:.4g} s, {seen.mfu:.1%} used", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(RESULT, index=False, float_format="%.5g")
    print(summary(table))


def summary(table: pd.DataFrame) -> str:
    """How far the libraries' steps are from each other, and the most that a device is used."""
    lines = []
    for (model, precision), every in table[table["library"] != DEFAULT].groupby(["model", "precision"], sort=False):
        apart = every.groupby("device")["sim_step_s"].agg(lambda steps: steps.max() / steps.min() - 1)
        libraries = ", ".join(every["library"].unique())
        lines.append(f"{model}, {precision}: the slowest at most {apart.max():.1%} above the quickest ({libraries})")
    most = table.loc[table["sim_utilisation"].idxmax()]
    lines.append(f"used most: {most['sim_utilisation']:.1%} ({most['model']}, {most['library']}, {most['device']}, {most['precision']})")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
