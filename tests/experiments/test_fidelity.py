"""Published iterations: the Plans are those of the published systems, and a calibration finds constants that made the times."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.fidelity.__main__ import main as fidelity
from experiments.fidelity.constants import CLUSTERS, CONSTANTS, load_machine, save_constants, step_s
from experiments.fidelity.fit import fitted, folds, predicted
from experiments.fidelity.kernels import kernels_of
from experiments.fidelity.model import GPTSize
from experiments.fidelity.plans import Planned, plan_of
from experiments.fidelity.points import SETS, Point, System, points
from experiments.fidelity.score import order_kept, summary
from experiments.fidelity.works import Row, Work, kept_work, work_of
from planner.cost import AnalyticCost
from planner.ir.collective import Collective
from planner.ir.errors import InvalidFile
from planner.ir.graph import Op, Ref, Role
from planner.ir.plan import Boxing, Fragment, TaskKind
from planner.ir.tensor import DType, TensorType
from planner.schedule.actions import Pass
from planner.schedule.classic import one_f_one_b
from simulator.engine import simulate

RESULTS = Path(__file__).parent.parent.parent / "experiments/results"
SIZE = GPTSize(layers=4, hidden=64, heads=4, seq=32, vocab=512)


def a_point(**changes: object) -> Point:
    plain = Point(
        data="test", name="test", machine="a100", nic="selene", system=System.MEGATRON, size=SIZE, batch=8, micro_batch=1,
        tp=2, dp=2, pp=2, interleave=1, sequence_parallel=False, paper_s=1.0,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


@cache
def planned(point: Point) -> Planned:
    return plan_of(point)


@cache
def work(point: Point) -> Work:
    return work_of(point, planned(point))


def product_flop(point: Point) -> int:
    """Of all devices and a step."""
    planned_point = planned(point)
    total = 0
    for task in planned_point.plan.tasks:
        if isinstance(task.body, Fragment):
            made = kernels_of(task.body.ops, planned_point.types, frozenset(a.name for a in task.writes))
            total += task.acts * sum(product.flop for product in made.products) * len(planned_point.plan.ranks_of(task))
    return total


@pytest.mark.parametrize("shape", [{}, {"tp": 1, "pp": 1, "dp": 4}, {"tp": 4, "dp": 1}, {"tp": 2, "dp": 1, "interleave": 2}])
def test_products_of_a_plan_are_equation_3_of_the_paper(shape: Mapping[str, int]) -> None:
    """96 B s l h^2 (1 + s/6h + V/16lh): a forward pass, its recomputation, and a backward pass of twice that (Narayanan et al. 2021)."""
    point = a_point(**shape)
    s, h, layers, vocab = SIZE.seq, SIZE.hidden, SIZE.layers, SIZE.vocab
    paper = 96 * point.batch * s * layers * h**2 + 16 * point.batch * s**2 * layers * h + 6 * point.batch * s * h * vocab
    assert product_flop(point) == paper


def test_selective_recomputation_makes_only_the_attention_again() -> None:
    """But for its last product, the sum over values, which nothing in the backward part reads."""
    full, selective = a_point(dp=1), a_point(dp=1, sequence_parallel=True)
    linear = 24 * full.batch * SIZE.seq * SIZE.layers * SIZE.hidden**2
    over_values = 2 * full.batch * SIZE.seq**2 * SIZE.layers * SIZE.hidden
    assert product_flop(full) - product_flop(selective) == linear + over_values


def test_oneflow_leaves_out_the_last_product_of_a_recomputed_layer() -> None:
    whole, lean = a_point(), a_point(system=System.ONEFLOW)
    assert product_flop(whole) - product_flop(lean) == 8 * whole.batch * SIZE.seq * SIZE.layers * SIZE.hidden**2


@pytest.mark.parametrize("size", [replace(SIZE, hidden=1024, vocab=2048), replace(SIZE, hidden=2048, vocab=51200)])
def test_tensor_parallelism_all_reduces_what_megatron_does_and_moves_nothing_else(size: GPTSize) -> None:
    """6 per layer (two each of the forward pass, its recomputation and the backward pass), one each of the embedding and of the head's gradient;
    beside them two numbers per token for the softmax (Shoeybi et al. 2019, figures 3 and 4)."""
    plan = planned(a_point(size=size, dp=1, pp=1, tp=4, system=System.MEGATRON)).plan
    whole, per_token, others = 0, 0, []
    for task in plan.tasks:
        if not isinstance(task.body, Boxing) or task.acts == 1:
            continue  # once per step: gradients, the loss
        for read in task.reads:
            numel = math.prod(plan.regst[read.regst].tensors[read.index].shape)
            whole += numel == size.hidden * size.seq and task.body.collective is Collective.ALL_REDUCE
            per_token += numel == size.seq and task.body.collective is Collective.ALL_REDUCE
            if numel not in (size.hidden * size.seq, size.seq) or task.body.collective is not Collective.ALL_REDUCE:
                others.append((task.id, task.body.collective.value, read.name))
    assert (whole, others) == (6 * size.layers + 2, [])
    assert 2 <= per_token <= 4


def overlaps(point: Point) -> bool:
    """Whether a gradient is reduced among the replicas before the backward part of its stage is over."""
    plan = planned(point).plan
    acts = simulate(plan, AnalyticCost(plan.cluster), steps=1).acts
    kind = {task.id: task for task in plan.tasks}
    over = max(a.end_s for a in acts if a.rank == 0 and kind[a.task].kind is TaskKind.BACKWARD)
    reduced = [
        a
        for a in acts
        if a.rank == 0
        and isinstance(body := kind[a.task].body, Boxing)
        and body.axis == 0
        and ".grad." in a.task
        and kind[a.task].acts == 1
    ]
    assert reduced
    return min(a.start_s for a in reduced) < over


def test_gradients_overlap_with_the_backward_pass_in_oneflow_without_tensor_parallelism_alone() -> None:
    wide = replace(SIZE, hidden=512, layers=12)  # its gradients fill more than a bucket
    assert not overlaps(a_point(tp=1, size=wide))
    assert not overlaps(a_point(tp=2, size=wide))
    assert overlaps(a_point(tp=1, size=wide, system=System.ONEFLOW))
    assert not overlaps(a_point(tp=2, size=wide, system=System.ONEFLOW))


def test_megatron_stages_perform_1f1b_in_its_order() -> None:
    plan = planned(a_point(batch=16)).plan
    schedule = one_f_one_b(2, plan.micro_batches)
    for stage, actions in enumerate(schedule.orders):
        order = [plan.task[t].kind for t in plan.stream[f"s{stage}.compute"].order if plan.task[t].kind is not TaskKind.UPDATE]
        passes = [kind for i, kind in enumerate(order) if i == 0 or kind is not order[i - 1]]
        wanted = [TaskKind.FORWARD if action.kind is Pass.FORWARD else TaskKind.BACKWARD for action in actions]
        assert passes == [kind for i, kind in enumerate(wanted) if i == 0 or kind is not wanted[i - 1]]


def an_op(name: str, target: str, *reads: str, module: str = "h.0.mlp") -> Op:
    return Op(id=name, target=target, args=tuple(map(Ref, reads)), outputs=(f"{name}.out",), role=Role.FORWARD, module=module)


def types_of(*ops: Op) -> dict[str, dict[str, TensorType]]:
    return {op.id: {v: TensorType((8, 8), DType.FLOAT16) for v in (*op.inputs, *filter(None, op.outputs))} for op in ops}


def test_elementwise_ops_of_a_block_are_one_sweep_up_to_a_product() -> None:
    a, b = an_op("a", "aten.gelu.default", "x"), an_op("b", "aten.mul.Tensor", "a.out", "y")
    product, c = an_op("p", "aten.mm.default", "b.out", "w"), an_op("c", "aten.add.Tensor", "p.out", "a.out")
    ops = (a, b, product, c)
    made = kernels_of(ops, types_of(*ops), frozenset({"c.out"}))
    assert made.num_kernels == 3
    assert made.sweep_bytes == 128 * ((2 + 2) + (2 + 1))  # x, y in; a (c reads it), b out.  p, a in; c out


def test_elementwise_ops_outside_of_blocks_are_a_kernel_each() -> None:
    a, b = (an_op(n, "aten.gelu.default", r, module="ln_f") for n, r in (("a", "x"), ("b", "a.out")))
    made = kernels_of((a, b), types_of(a, b), frozenset({"b.out"}))
    assert (made.num_kernels, made.sweep_bytes) == (2, 4 * 128)


@given(name=st.sampled_from(sorted(set(CONSTANTS) - {"launch_us"})), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_slower_device_is_never_quicker_while_hosts_are_not_in_the_way(name: str, low: float, high: float) -> None:
    """Where they are, a slower device hides more of the host, and acts that overlap gain more by that than they lose."""
    point, machine = a_point(), load_machine("a100").with_values({"launch_us": 1e-9})
    c = CONSTANTS[name]
    values = [c.low + (c.high - c.low) * share for share in sorted((low, high))]
    first, second = (step_s(work(point), machine.with_values({name: value}), point.nic) for value in values)
    if name.endswith("_share"):
        first, second = second, first
    assert first <= second * (1 + 1e-9)


def test_a_fit_finds_the_times_that_known_constants_made() -> None:
    # Wide micro-batches, so that the devices' rates matter beside the hosts'.
    size = replace(SIZE, hidden=1024, heads=8, seq=256)
    shapes = [{"tp": t, "dp": d, "pp": 1, "micro_batch": b} for t, d in ((1, 2), (2, 1), (2, 2), (1, 4)) for b in (1, 2)]
    machine = load_machine("a100").with_values({"step_ms": 1.0})
    free = ("product_share", "passed_latency_us", "node_share", "launch_us")
    true = machine.with_values({"product_share": 0.5, "passed_latency_us": 120.0, "node_share": 0.4, "launch_us": 20.0})
    cases = []
    for shape in shapes:
        point = a_point(size=size, batch=16, **shape)
        cases.append((replace(point, paper_s=step_s(work(point), true, point.nic)), work(point)))
    paper = np.array([point.paper_s for point, _ in cases])
    before = np.abs(predicted(cases, machine) / paper - 1).max()
    after = np.abs(predicted(cases, fitted(cases, machine, free, rounds=12, slopes=8).machine) / paper - 1).max()
    assert after < 0.01 < before


@given(count=st.integers(0, 200), parts=st.integers(1, 9), seed=st.integers(0, 9))
def test_folds_hold_every_point_once(count: int, parts: int, seed: int) -> None:
    dealt = folds(count, parts, seed)
    assert sorted(i for fold in dealt for i in fold) == list(range(count))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_kept_work_is_the_work_that_was_made(tmp_path: Path) -> None:
    point, machine = a_point(), load_machine("a100")
    made = kept_work(point, tmp_path)
    again = kept_work(point, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert step_s(again, machine, point.nic) == step_s(made, machine, point.nic)
    assert np.count_nonzero(again.kind == Row.COMPUTE) > 0


def test_saved_constants_are_read_again(tmp_path: Path) -> None:
    machine = load_machine("a100")
    (tmp_path / "a100.toml").write_text((CLUSTERS / "a100.toml").read_text())
    save_constants(machine.with_values({"step_ms": 2.5}), {"script": "a test"}, tmp_path)
    save_constants(machine.with_values({"step_ms": 3.5}), {"script": "a test"}, tmp_path)
    assert load_machine("a100", tmp_path).values["step_ms"] == 3.5
    assert load_machine("a100", tmp_path).nics == machine.nics


def test_a_machine_without_a_sheet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text('source = "none"\n')
    with pytest.raises(InvalidFile, match=r"sheet"):
        load_machine("new", tmp_path)


@pytest.mark.parametrize("data", SETS)
def test_published_configurations_divide_their_batches_and_layers(data: str) -> None:
    for point in points(data):
        assert point.batch == point.micro_batches * point.micro_batch * point.dp
        assert point.size.layers % (point.pp * point.interleave) == 0
        assert point.size.heads % point.tp == 0


def test_fitted_constants_are_inside_their_bounds() -> None:
    assert len(CONSTANTS) <= 15
    for name in ("a100", "v100"):
        for key, value in load_machine(name).values.items():
            assert CONSTANTS[key].low * 0.999 <= value <= CONSTANTS[key].high * 1.001


def test_the_committed_summary_is_that_of_the_committed_rows() -> None:
    rows = pd.read_csv(RESULTS / "fidelity.csv")
    kept = pd.read_csv(RESULTS / "fidelity_summary.csv")
    assert summary(rows)["mean_error"].tolist() == pytest.approx(kept["mean_error"].tolist(), rel=1e-3)
    assert (rows["sim_s"] / rows["paper_s"] - 1).tolist() == pytest.approx(rows["error"].tolist(), abs=1e-4)


def test_the_small_size_plans_fits_scores_and_draws_every_set_in_its_own_folder(tmp_path: Path) -> None:
    kept = {path: path.read_bytes() for path in (*CLUSTERS.iterdir(), *RESULTS.glob("fidelity*"))}
    fidelity(["--smoke", "--out", str(tmp_path)])
    assert {path: path.read_bytes() for path in kept} == kept
    rows = pd.read_csv(tmp_path / "fidelity.csv")
    assert set(rows["data"]) == {*SETS, "dlperf-oneflow", "dlperf-megatron"} - {"dlperf"}
    assert (rows["sim_s"] > 0).all()
    assert set(rows.loc[rows["predicted_by"] == "held out", "data"]) == {"sc21", "seqpar"}
    assert {path.name for path in tmp_path.glob("*.png")} == {"fidelity.png", "fidelity_residuals.png"}


@pytest.mark.thorough
def test_the_command_plans_in_processes_of_its_own(tmp_path: Path) -> None:
    """Story: they looked for a function of the command's ``__main__``, which a spawned process does not load, and make fidelity planned nothing."""
    command = [sys.executable, "-m", "experiments.fidelity", "--smoke", "--machines", "v100", "--jobs", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "fidelity.csv")) == 2


@pytest.mark.parametrize("folder", ["results", "fidelity/new"])
def test_the_small_size_is_not_written_among_the_committed_files(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        fidelity(["--smoke", "--out", str(CLUSTERS.parents[1] / folder)])
    assert end.value.code == 2
    assert "among the committed files; choose a folder outside of experiments/" in capsys.readouterr().err


def test_order_is_kept_where_both_say_that_oneflow_is_first() -> None:
    rows = pd.DataFrame(
        [
            {"point": f"{case}, {system}", "system": system, "paper_s": paper, "sim_s": sim}
            for case, system, paper, sim in (
                ("one", "oneflow", 1.0, 1.0), ("one", "megatron", 2.0, 1.5), ("two", "oneflow", 1.0, 2.0), ("two", "megatron", 2.0, 1.5),
            )
        ]
    )  # fmt: skip
    assert order_kept(rows)["order_kept"].tolist() == [True, False]
