"""The small models of the matrix: their sizes, and where they can be cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A small model of the zoo and where it can be cut.

    sizes: arguments of the factory; a seed is given where with seed 0 some relu lies nearer to its kink than rounding can tell, so that
    two right trainings differ (the same plan in float64 does not, see test_transparency_laws).  body: modules whose results carry the batch in dim 0.
    tensor: pins of the weights; {0} is the layout of a column's weight (cut by output features), {1} that of a row's (by input features).
    columns: modules whose results are cut by ``features``, and between: modules whose results are cut by ``sequence`` (dims), under a
    sequence split.
    half, quarters: modules at which the 2nd of two stages, and the 2nd to 4th of four, begin ("" cuts where the work is even).
    """

    sizes: Mapping[str, int]
    body: tuple[str, ...]
    tensor: tuple[str, ...]
    columns: tuple[str, ...]
    between: tuple[str, ...]
    quarters: tuple[str, ...]
    half: str = ""
    sequence: int = 1
    features: int = 1


MODELS: Mapping[str, Model] = {
    "mlp": Model(
        sizes={"batch": 64, "width": 16, "hidden": 32},
        body=("blocks.?",),
        tensor=("blocks.*.up.weight={0}", "blocks.*.up.bias={0}", "blocks.*.down.weight={1}"),
        columns=("blocks.?.up",),
        between=("blocks.?",),
        quarters=("blocks.0.down", "blocks.1", "blocks.1.down"),
    ),
    "gpt": Model(
        sizes={"layers": 2, "width": 32, "heads": 4, "vocab": 64, "batch": 16, "seq": 16, "tied": 1},
        body=("h.?",),
        tensor=(
            *(f"h.*.attn.{n}.weight={{0}}" for n in "qkv"),
            "h.*.attn.c_proj.weight={1}",
            "h.*.mlp.c_fc.weight={0}",
            "h.*.mlp.c_proj.weight={1}",
        ),
        columns=("h.?.attn.[qkv]", "h.?.mlp.c_fc"),
        between=("h.?", "h.?.ln_?"),
        features=2,
        quarters=("h.0.ln_2", "h.1", "h.1.ln_2"),
    ),
    "convnet": Model(
        sizes={"batch": 16, "channels": 8, "size": 8},
        body=("stage?", "stage?.conv?", "stage?.bn?"),
        tensor=("stage*.conv1.weight={0}", "stage*.conv2.weight={1}"),
        columns=("stage?.conv1",),
        between=("stage?",),
        quarters=("stage2", "stage3", "stage3.conv2"),
        sequence=2,
    ),
    "bert": Model(
        sizes={"layers": 2, "width": 16, "heads": 2, "vocab": 32, "batch": 16, "seq": 8},
        body=("layers.?",),
        tensor=(
            *(f"layers.*.attention.{n}.weight={{0}}" for n in ("query", "key", "value")),
            "layers.*.attention.dense.weight={1}",
            "layers.*.intermediate.weight={0}",
            "layers.*.output.weight={1}",
        ),
        columns=("layers.?.attention.query", "layers.?.attention.key", "layers.?.attention.value", "layers.?.intermediate"),
        between=("layers.?", "layers.?.ln_attention"),
        features=2,
        quarters=("layers.0.intermediate", "layers.1", "layers.1.intermediate"),
    ),
    "t5": Model(
        sizes={"layers": 1, "width": 16, "heads": 2, "hidden": 32, "vocab": 32, "batch": 16, "seq": 8, "target_seq": 8},
        body=("encoder.blocks.?", "decoder.blocks.?"),
        tensor=(
            *(f"*_attention.{n}.weight={{0}}" for n in "qkv"),
            "*_attention.o.weight={1}",
            "*.ff.wi.weight={0}",
            "*.ff.wo.weight={1}",
        ),
        half="decoder.relative",
        columns=("*_attention.[qkv]", "*.ff.wi"),
        between=("*.blocks.?", "*.norm_*"),
        features=2,
        quarters=("encoder.blocks.0.norm_ff", "decoder.relative", "decoder.blocks.0.norm_ff"),
    ),
    "resnet50": Model(
        sizes={"batch": 16, "image": 16, "classes": 8, "layers": 8, "width": 4, "seed": 7},
        body=("blocks.?", "blocks.?.conv?", "blocks.?.bn?"),
        tensor=("blocks.*.conv1.weight={0}", "blocks.*.conv2.weight={1}"),
        columns=("blocks.?.conv1",),
        between=("blocks.?",),
        half="blocks.1",
        quarters=("blocks.0", "blocks.1", "blocks.1.conv3"),
        sequence=2,
    ),
    "unet": Model(
        sizes={"batch": 16, "image": 8, "channels": 1, "classes": 2, "layers": 2, "width": 4, "norm": 1},
        body=("down.?", "up.?"),
        tensor=("*.conv1.weight={0}", "*.conv2.weight={1}"),
        half="up.0",
        columns=("*.conv1",),
        between=("down.?", "up.?"),
        quarters=("down.1", "up.0", "up.1"),
        sequence=2,
    ),
    "moe": Model(
        sizes={"layers": 2, "width": 32, "heads": 2, "experts": 4, "hidden": 32, "vocab": 32, "batch": 16, "seq": 4},
        body=("h.?.attn", "h.?.ln_2"),
        tensor=(
            *(f"h.*.attn.{n}.weight={{0}}" for n in "qkv"),
            "h.*.attn.c_proj.weight={1}",
            "h.0.mlp.c_fc.weight={0}",
            "h.0.mlp.c_proj.weight={1}",
            "h.1.mlp.w_*={0}",  # experts
        ),
        columns=("h.?.attn.[qkv]", "h.0.mlp.c_fc"),
        between=("h.?.ln_?",),
        features=2,
        quarters=("h.0.ln_2", "h.1", "h.1.ln_2"),
    ),
    "wide_deep": Model(
        sizes={"batch": 16, "vocab": 32, "embedding": 4, "layers": 4, "width": 32, "seed": 4},
        body=("deep", "hidden.?"),
        tensor=("deep.weight={0}", "hidden.0.weight={0}", "hidden.1.weight={1}", "hidden.2.weight={0}", "hidden.3.weight={1}"),
        columns=("hidden.0", "hidden.2"),
        between=("hidden.1", "hidden.3"),
        quarters=("hidden.0", "hidden.2", "head"),
    ),
    "llama3": Model(
        sizes={"layers": 2, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 32, "vocab": 32, "batch": 16, "seq": 8},
        body=("layers.?",),
        tensor=(
            *(f"layers.*.attention.{n}_proj.weight={{0}}" for n in "qkv"),
            "layers.*.attention.o_proj.weight={1}",
            *(f"layers.*.mlp.{n}_proj.weight={{0}}" for n in ("gate", "up")),
            "layers.*.mlp.down_proj.weight={1}",
        ),
        columns=("layers.?.attention.[qkv]_proj", "layers.?.mlp.gate_proj", "layers.?.mlp.up_proj"),
        between=("layers.?", "layers.?.*_norm"),
        features=2,
        quarters=("layers.0.mlp_norm", "layers.1", "layers.1.mlp_norm"),
    ),
}
