"""The vision and click models of the zoo: published sizes, rules for every op, and training on two devices as on one (SEMANTICS 6.1)."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor

from backend.reference import perform
from planner.frontend import SGD, Deferred, Program
from planner.ir.cluster import Cluster, DeviceSpec, LinkSpec
from planner.ir.errors import InvalidProgram
from planner.ir.graph import LogicalGraph
from planner.ir.plan import TaskKind
from planner.ir.sbp import S
from planner.opset import known_targets, signatures
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO
from zoo.seeded import seeded_module
from zoo.vision.batchnorm import GroupedBatchNorm

BATCH, STEPS = 10, 2  # no other dim of the tiny models has extent 10

TINY: dict[str, dict[str, int | str]] = {
    "alexnet": {"image": 63, "width": 2, "classes": 6},
    "vgg19": {"image": 32, "width": 2, "classes": 6, "layers": 11},
    "resnet50": {"image": 16, "width": 4, "classes": 6, "layers": 8},
    "resnet50 parts": {"image": 16, "width": 4, "classes": 6, "layers": 8, "statistics": 2},
    "wide_resnet": {"image": 16, "width": 4, "classes": 6, "layers": 8, "widen": 3},
    "unet": {"image": 16, "width": 4, "classes": 3, "layers": 2, "norm": 1},
    "vit": {"image": 16, "patch": 8, "width": 8, "heads": 2, "layers": 2, "classes": 6},
    "wide_deep": {"vocab": 64, "embedding": 4, "layers": 2, "width": 8, "optimizer": "sgd"},
    "dlrm": {"rows": 256, "tables": 4, "width": 8},
    "insightface": {"image": 16, "classes": 12, "layers": 6, "width": 4, "vector": 8},
}

# Exact counts of trainable numbers.  AlexNet, VGG, ResNet, ViT: torchvision's tables of models; U-Net with batch norm: the widely used
# PyTorch port; DLRM: the paper's 540 million in tables (33,762,577 rows of 16) and its layers; Wide-ResNet: the names of Alpa's sizes.
PUBLISHED: dict[str, tuple[str, dict[str, int | str], int]] = {
    "alexnet": ("alexnet", {}, 61_100_840),
    "vgg11": ("vgg19", {"layers": 11}, 132_863_336),
    "vgg13": ("vgg19", {"layers": 13}, 133_047_848),
    "vgg16": ("vgg19", {"layers": 16}, 138_357_544),
    "vgg19": ("vgg19", {}, 143_667_240),
    "vgg19 of a million classes": ("vgg19", {"classes": 1_000_000}, 143_667_240 + 4097 * 999_000),
    "resnet50": ("resnet50", {}, 25_557_032),
    "resnet101": ("resnet50", {"layers": 101}, 44_549_160),
    "resnet152": ("resnet50", {"layers": 152}, 60_192_808),
    "unet with batch norm": ("unet", {"channels": 3, "norm": 1}, 31_037_698),
    "vit b 16": ("vit", {}, 86_567_656),
    "vit l 16": ("vit", {"layers": 24, "width": 1024, "heads": 16}, 304_326_632),
    "vit h 14": ("vit", {"layers": 32, "width": 1280, "heads": 16, "patch": 14}, 632_045_800),
    "dlrm kaggle": ("dlrm", {}, 33_762_577 * 16 + 155_984 + 320_001),
    "insightface 100": ("insightface", {}, 65_156_160 + 85_742 * 512),
}


@cache
def tiny(name: str) -> Program:
    return ZOO[name.split()[0]](batch=BATCH, **TINY[name])


@cache
def graph(name: str) -> LogicalGraph:
    return tiny(name).graph()


# --- sizes -------------------------------------------------------------------------------------------------------------------


def skeleton_numbers(name: str, **options: int | str) -> int:
    program = ZOO[name](batch=2, **options)
    return sum(parameter.numel() for parameter in program._module.parameters())


@pytest.mark.parametrize("row", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(row: str) -> None:
    name, options, count = PUBLISHED[row]
    assert skeleton_numbers(name, **options) == count


@pytest.mark.parametrize(
    ("size", "unit"), [("250M", 1e6), ("500M", 1e6), ("1B", 1e9), ("2B", 1e9), ("4B", 1e9), ("6.8B", 1e9), ("13B", 1e9)]
)
def test_a_wide_resnet_has_the_size_that_its_name_says(size: str, unit: float) -> None:
    assert skeleton_numbers("wide_resnet", size=size) == pytest.approx(float(size[:-1]) * unit, rel=0.03)


def test_the_memory_of_a_click_model_is_its_vocabulary() -> None:
    rows = 819_200_000
    assert skeleton_numbers("wide_deep", vocab=rows) - skeleton_numbers("wide_deep", vocab=1000) == (rows - 1000) * (32 + 1)
    assert skeleton_numbers("dlrm", criteo="terabyte") > 187_000_000 * 128


# --- deferred values ---------------------------------------------------------------------------------------------------------


def test_a_model_of_4e9_parameters_is_traced_without_its_memory() -> None:
    program = ZOO["vgg19"](batch=2, image=32, classes=1_000_000)
    traced = program.graph()
    assert traced.values["parameter:fc3.weight"].size_bytes == 4 * 4096 * 10**6
    assert all(parameter.is_meta for parameter in program._module.parameters())


def test_a_large_batch_is_planned_without_its_images() -> None:
    program = ZOO["wide_resnet"](batch=1536)
    assert program.batch_size == 1536 and all(t.is_meta for t in program.example_inputs)
    for t, drawn in zip(tiny("unet").example_inputs, tiny("unet").batch(0), strict=True):
        assert t.is_meta and not drawn.is_meta and (t.shape, t.dtype) == (drawn.shape, drawn.dtype)


def test_a_batch_without_values_cannot_be_run() -> None:
    program = Program(torch.nn.Linear(3, 4), torch.empty(2, 3, device="meta"), lambda y: y.sum())
    program.graph()
    with pytest.raises(InvalidProgram, match=r"no values .* give Program\(data=...\)"):
        program.batch(0)


def test_deferred_values_are_those_of_the_seed() -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    program = Program(Deferred(lambda: seeded_module(build, 7)), torch.ones(2, 3), lambda y: y.sum())
    program.graph()
    state = program.initial_state()
    for name, value in seeded_module(build, 7).state_dict().items():
        assert torch.equal(state[name], value), name


def test_a_skeleton_has_the_names_shapes_and_dtypes_of_the_module_whoever_draws_its_values() -> None:
    def build() -> torch.nn.Module:
        layers = [torch.nn.Linear(3, 4), torch.nn.Conv2d(3, 4, 3), torch.nn.LSTM(3, 5), torch.nn.TransformerEncoderLayer(8, 2)]
        torch.nn.init.trunc_normal_(tensor=torch.nn.init.orthogonal_(layers[0].weight), std=0.02)
        with torch.no_grad():
            layers[1].bias.fill_(torch.nn.init.calculate_gain("relu"))
        return torch.nn.ModuleList(layers)

    skeleton, module = Deferred(build).skeleton(), build()
    held = {name: (value.shape, value.dtype, value.requires_grad) for name, value in module.named_parameters()}
    assert held == {name: (value.shape, value.dtype, value.requires_grad) for name, value in skeleton.named_parameters()}
    assert all(value.is_meta for value in skeleton.parameters())


def test_a_change_to_the_module_is_seen_by_the_next_trace() -> None:
    program = ZOO["vgg19"](batch=BATCH, **TINY["vgg19"])
    program.module.get_parameter("fc3.bias").requires_grad_(False)
    assert "fc3.bias" not in program.graph().gradients


# --- rules -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_every_op_of_the_step_has_a_rule(name: str) -> None:
    assert {op.target for op in graph(name).ops} <= known_targets()


@pytest.mark.parametrize("name", TINY)
def test_no_op_stops_the_batch(name: str) -> None:
    """An op whose first operand has the batch as a dim may lie with that dim split: data parallelism needs no gather."""
    for op in graph(name).ops:
        if op.role.per_micro_batch and op.inputs and BATCH in (shape := graph(name).values[op.inputs[0]].shape):
            split = S(shape.index(BATCH))
            assert any(s.inputs[0] == split for s in signatures(op, graph(name).values, 2)), op.where()


@pytest.mark.parametrize("name", ["resnet50", "insightface"])
def test_no_part_of_a_batch_has_statistics_of_its_own(name: str) -> None:
    """Ops that make a running statistic read sums over the batch: where the batch is split these are P, so that B needs an all-reduce."""
    traced = graph(name)
    producer = {out: op for op in traced.ops for out in op.outputs if out is not None}
    sums = 0
    for given, new in traced.updates.items():
        if not given.endswith(("running_mean", "running_var")):
            continue
        pending, seen = [new], set[str]()
        while pending:
            value = pending.pop()
            op = producer.get(value)
            if op is None or value in seen:
                continue
            seen.add(value)
            if op.target == "aten.sum.dim_IntList":
                split = [s for s in signatures(op, traced.values, 2) if s.inputs[0] == S(0)]
                assert [str(s) for s in split] == ["S(0) -> P"]
                sums += 1
                continue
            assert traced.values[value].shape[:1] != (BATCH,), op.where()
            pending.extend(op.inputs)
    assert sums > 0


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_batch_norm_is_batch_norm_of_each_group(groups: int) -> None:
    x = torch.randn(6, 3, 2, 4, dtype=torch.float64)
    grouped, ordinary = GroupedBatchNorm(3, groups).double(), torch.nn.BatchNorm2d(3).double()
    with torch.no_grad():
        for norm in (grouped, ordinary):
            norm.weight.copy_(torch.arange(1.0, 4.0))
    alone = torch.cat([ordinary(part) for part in x.chunk(groups)])
    torch.testing.assert_close(grouped(x), alone)
    if groups == 1:
        torch.testing.assert_close(dict(grouped.named_buffers()), dict(ordinary.named_buffers()))
    torch.testing.assert_close(grouped.eval()(x), F.batch_norm(x, grouped.running_mean, grouped.running_var, grouped.weight, grouped.bias))


def test_running_statistics_are_the_average_over_the_groups() -> None:
    x = torch.randn(6, 3, 2, 4, dtype=torch.float64)
    grouped = GroupedBatchNorm(3, 2).double()
    grouped(x)
    apart = [torch.nn.BatchNorm2d(3).double() for _ in range(2)]
    for norm, part in zip(apart, x.chunk(2), strict=True):
        norm(part)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(grouped.get_buffer(name), sum(norm.get_buffer(name) for norm in apart) / 2)


def test_a_batch_that_has_no_such_groups_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"over 4 groups: a \(micro-\)batch of 10 cannot be cut so"):
        ZOO["resnet50"](batch=BATCH, **TINY["resnet50"], statistics=4).graph()


def test_statistics_of_parts_need_no_all_reduce_on_the_way() -> None:
    """What is still sent in forward are the running statistics, which nobody waits for."""
    sent = {}
    for groups in (1, 2):
        source = ZOO["resnet50"](batch=BATCH, **TINY["resnet50"], statistics=groups)
        options = PlanOptions(pins=("input.0=S(0)", "out:blocks.*=S(0)"))
        plan = make_plan(source.graph(), model="resnet", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
        sent[groups] = sum("all_reduce" in task.id and (".fwd." in task.id or ".bwd." in task.id) for task in plan.tasks)
    assert sent[2] <= 1 < 14 < sent[1]


# --- transparency ------------------------------------------------------------------------------------------------------------

# Column, then row: what the planner is expected to find when a layer outgrows the batch.
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{f"{name} data": (name, ("input.0=S(0)",)) for name in TINY},
    "vgg19 classes": ("vgg19", ("input.0=S(0)", "fc1.weight=S(0)", "fc2.weight=S(1)", "fc3.weight=S(0)")),
    "vit heads": ("vit", ("input.0=B", *(f"blocks.*.attn.{n}.weight=S(0)" for n in "qkv"), "blocks.*.attn.proj.weight=S(1)")),
    "unet channels": ("unet", ("input.0=B", "*.conv1.weight=S(0)", "*.conv2.weight=S(1)")),
    "insightface persons": ("insightface", ("input.0=S(0)", "persons=S(0)")),
    "dlrm columns": ("dlrm", ("input.0=S(0)", "tables.*.weight=S(1)")),
    "dlrm rows": ("dlrm", ("input.0=S(0)", "tables.*.weight=S(0)")),
    "wide_deep rows": ("wide_deep", ("input.0=S(0)", "deep.weight=S(0)")),
    "wide_deep columns": ("wide_deep", ("input.0=S(0)", "deep.weight=S(1)")),
}


def in_double(name: str) -> Program:
    """The tiny model in float64: batch norm over few values makes much of a rounding error, and nothing of it here."""
    made = ZOO[name.split()[0]](batch=BATCH, **TINY[name])

    def data(step: int) -> tuple[Tensor, ...]:
        return tuple(t.double() if t.is_floating_point() else t for t in made.batch(step))

    return Program(made.module.double(), data(0), made.loss, SGD(lr=0.02, momentum=0.9), name=name, data=data)


@pytest.mark.representatives(*list(WAYS)[::3])
@pytest.mark.parametrize("way", WAYS)
def test_two_devices_train_like_one(way: str) -> None:
    name, pins = WAYS[way]
    source = in_double(name)
    plan = make_plan(source.graph(), model=name, batch_size=BATCH, cluster=roomy_cluster(2), options=PlanOptions(pins=pins))
    assert any(task.kind is TaskKind.BOXING and "loss" not in task.id for task in plan.tasks), "nothing is distributed"
    outcome = perform(plan, source.initial_state(), source.batch, STEPS, gradients=True)
    assert_transparent(outcome, train_eagerly(source, 1, STEPS))


def test_statistics_of_parts_in_place_of_the_wholes_would_be_seen() -> None:
    """The same weights, the same batches: if a plan took each part's own statistics, the comparison above would say so."""
    source = in_double("resnet50 parts")
    plan = make_plan(source.graph(), model="parts", batch_size=BATCH, cluster=roomy_cluster(1), options=PlanOptions())
    outcome = perform(plan, source.initial_state(), source.batch, STEPS, gradients=True)
    with pytest.raises(AssertionError):
        assert_transparent(outcome, train_eagerly(in_double("resnet50"), 1, STEPS))


# --- what a planner should find ----------------------------------------------------------------------------------------------


def v100_node() -> Cluster:
    """Eight devices like the V100s of the published runs: 16 TFLOP/s, 900 GB/s and 130 GB/s of NVLink, all taken at about 0.7."""
    device = DeviceSpec(kind="v100", memory_bytes=32 * 10**9, rate_flop_per_s=11e12, memory_bandwidth_bytes_per_s=630e9)
    return Cluster(
        name="v100x8", source="", num_nodes=1, devices_per_node=8, device=device, node=LinkSpec(latency_s=2e-5, bandwidth_bytes_per_s=9e10)
    )


def layout(name: str, parameter: str, **options: int | str) -> str:
    """How the planner lays a parameter on the node, without pins."""
    source = ZOO[name](**options)
    plan = make_plan(source.graph(), model=name, batch_size=source.batch_size, cluster=v100_node(), options=PlanOptions())
    (layout,) = {str(t.sbp) for regst in plan.regsts for t in regst.tensors if t.name == f"parameter:{parameter}"}
    return layout


def test_the_classes_of_a_widened_vgg_are_split_and_its_convolutions_are_not() -> None:
    """The strategy that TePDist reports: the last classifier is model-parallel once it has about 10^6 classes."""
    assert layout("vgg19", "fc3.weight", batch=64, classes=1_000_000) == "S(0)"
    assert layout("vgg19", "blocks.0.0.weight", batch=64, classes=1_000_000) == "B"


def test_a_table_of_819_million_rows_is_split_without_a_list_of_their_numbers() -> None:
    """Each part needs the number of its first row only; a list of all would be 6.6 GB beside a part of 3.4 GB."""
    rows = 819_200_000
    traced = ZOO["wide_deep"](vocab=rows, batch=64).graph()
    assert not [value for value, of in traced.values.items() if rows in of.shape and not of.dtype.is_floating]
    for parts in (2, 8, 32, 64):
        layouts = [str(s) for op in traced.ops if op.target == "regista.embedding" for s in signatures(op, traced.values, parts)]
        assert layouts.count("S(0), B, S(0) -> P") == 2


def test_the_tables_of_wide_and_deep_lie_as_oneflows_authors_laid_them_by_hand() -> None:
    """Rows of the wide table, whose width is 1; columns of the deep one."""
    tables = [layout("wide_deep", f"{table}.weight", vocab=102_400_000) for table in ("wide", "deep")]
    assert tables == ["S(0)", "S(1)"]


# --- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("vgg19", {"layers": 12}, "layers is one of 11, 13, 16, 19"),
        ("resnet50", {"layers": 51}, "layers is one of 8, 14, 26, 50, 101, 152"),
        ("wide_resnet", {"size": "3B"}, "size 3B is unknown; it is one of 250M"),
        ("unet", {"image": 100, "layers": 3}, "an image of 100 cannot be halved 3 times; take a multiple of 8"),
        ("vit", {"heads": 5}, "5 heads do not divide a width of 768"),
        ("vit", {"image": 100}, "patches of 16 do not divide an image of 100"),
        ("dlrm", {"criteo": "avazu"}, "criteo avazu is unknown; it is one of kaggle, terabyte"),
        ("dlrm", {"tables": 27}, "27 tables were asked for; there are 1 to 26"),
        ("insightface", {"layers": 99}, "layers is one of 6, 10, 18, 34, 50, 100"),
        ("insightface", {"image": 100}, "take a multiple of 16"),
    ],
)
def test_what_a_model_cannot_be_is_refused(name: str, options: dict[str, int | str], says: str) -> None:
    with pytest.raises(InvalidProgram, match=says):
        ZOO[name](**options)
