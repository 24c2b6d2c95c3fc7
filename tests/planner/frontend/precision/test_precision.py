"""Mixed precision in the graph and in what a Plan holds: one cast per parameter and step, gradients in the format asked for, 18 or 16 bytes."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regista
from backend.checkpoint import Saved, find
from planner.frontend import AdamW, Program
from planner.frontend.tracing.trace import Tracer
from planner.ir.errors import InvalidProgram
from planner.ir.graph import InputKind, Role
from planner.ir.plan import Plan, RegstKind
from planner.ir.tensor import DType
from regista.analysis.state_bytes import state_bytes

CAST = "aten._to_copy.default"


class Layers(nn.Module):
    """Linear layers without bias, whose parameters are all computed with in the low format."""

    def __init__(self, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.h:
            x = x + layer(x).relu()
        return x.square().mean()


class Normed(Layers):
    """The same with a norm, which is computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = super().forward(self.norm(x))
        return loss


def program(module: nn.Module | None = None, **options: Any) -> Program:
    torch.manual_seed(0)
    made = Layers() if module is None else module
    return Program(made, torch.randn(8, 16), optimizer=AdamW(lr=1e-2), **{"precision": "bf16-mixed", **options})


def rank_bytes(plan: Plan) -> dict[str, int]:
    """Kind of state -> bytes of one rank, counters left out; and of gradients."""
    held: Counter[str] = Counter()
    for state in plan.states:
        tensor = plan.regst[state.regst].tensors[state.index]
        if tensor.shape:
            held[state.kind.value] += tensor.local_bytes(plan.placement[plan.regst[state.regst].placement])
    for access in plan.gradients.values():
        regst = plan.regst[access.regst]
        held["gradient"] += regst.tensors[access.index].local_bytes(plan.placement[regst.placement])
    return dict(held)


def test_each_parameter_is_cast_once_per_step_whatever_the_number_of_micro_batches() -> None:
    graph = program().graph(4)
    weights = [f"parameter:h.{n}.weight" for n in range(2)]
    casts = [op for op in graph.ops if op.target == CAST and set(op.inputs) & {*weights, "updated:h.0.weight", "updated:h.1.weight"}]
    assert [(op.role, op.inputs) for op in casts] == [(Role.UPDATE, (f"updated:h.{n}.weight",)) for n in range(2)]
    read = {value for op in graph.ops if op.role.per_micro_batch for value in op.inputs}
    assert read.isdisjoint(weights)
    assert {i.copy_of for i in graph.inputs if i.kind is InputKind.WORKING_COPY and i.value in read} == set(weights)


def test_an_activation_that_several_layers_read_is_cast_once() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            loss: Tensor = (self.a(x) * self.b(x)).float().mean()
            return loss

    casts = [op for op in program(Shared()).graph().ops if op.target == CAST and op.inputs == ("batch:input.0",)]
    assert len(casts) == 1


def test_masters_and_moments_are_float32_and_working_copies_bfloat16() -> None:
    graph = program(Normed()).graph()
    dtypes = {kind: {graph.values[i.value].dtype for i in graph.inputs if i.kind is kind} for kind in InputKind}
    assert dtypes[InputKind.PARAMETER] == dtypes[InputKind.OPTIMIZER_STATE] == {DType.FLOAT32}
    assert dtypes[InputKind.WORKING_COPY] == {DType.BFLOAT16}
    assert {i.copy_of for i in graph.inputs if i.copy_of} == {"parameter:h.0.weight", "parameter:h.1.weight"}, "a norm is no matrix product"


@pytest.mark.parametrize(("asked", "held"), [(None, DType.FLOAT32), ("fp32", DType.FLOAT32), ("bf16", DType.BFLOAT16)])
def test_gradients_are_accumulated_in_the_format_asked_for(asked: str | None, held: DType) -> None:
    graph = program(Normed(), grad_dtype=asked).graph(2)
    assert {graph.values[value].dtype for value in graph.gradients.values()} == {held}


def test_gradients_of_a_module_in_bfloat16_can_be_accumulated_in_float32() -> None:
    made = Program(Layers().to(torch.bfloat16), torch.randn(8, 16).bfloat16(), grad_dtype="fp32")
    graph = made.graph(2)
    assert {graph.values[value].dtype for value in graph.gradients.values()} == {DType.FLOAT32}
    assert {graph.values[i.value].dtype for i in graph.inputs if i.kind is InputKind.PARAMETER} == {DType.BFLOAT16}


@pytest.mark.parametrize(("asked", "total"), [("fp32", 18), ("bf16", 16)])
def test_a_parameter_keeps_18_bytes_or_16_with_gradients_in_bfloat16(asked: str, total: int) -> None:
    made = program(grad_dtype=asked)
    plan = regista.plan(made, "local:1")
    elements = sum(p.numel() for p in made.module.parameters())
    assert rank_bytes(plan) == {
        "parameter": 4 * elements,
        "optimizer_state": 8 * elements,
        "working_copy": 2 * elements,
        "gradient": (total - 14) * elements,
    }
    assert state_bytes(plan).per_parameter["all"] == total
    states = sum(plan.block_bytes(regst) for regst in plan.regsts if regst.kind is RegstKind.STATE)
    assert states == 14 * elements + 4 * len(made.module.h), "and a step count per parameter, to the byte"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "parameter", "copy"),
    [
        (0, 4, 2),
        pytest.param(1, 2, 2, marks=pytest.mark.thorough),
        pytest.param(2, 2, 2, marks=pytest.mark.thorough),
        (3, 2, 1),
    ],
)
def test_zero_splits_masters_and_moments_from_level_1_and_working_copies_at_level_3(level: int, parameter: int, copy: int) -> None:
    made = program()
    whole = ["h.*.weight=B"] if level < 3 else []
    plan = regista.plan(made, "local:2", pins=["input.0=S(0)", "out:h.?=S(0)", *whole], zero=level, micro_batches=2)
    elements = sum(p.numel() for p in made.module.parameters())
    held = rank_bytes(plan)
    assert (held["parameter"], held["working_copy"]) == (parameter * elements, copy * elements)
    assert held["optimizer_state"] == (8 if level == 0 else 4) * elements


def test_a_pin_of_a_parameter_is_that_of_its_working_copy() -> None:
    plan = regista.plan(program(), "local:2", pins=["h.0.weight=S(1)"], zero=1)
    layouts = {state.name: str(plan.regst[state.regst].tensors[state.index].sbp) for state in plan.states}
    assert layouts["h.0.weight:bfloat16"] == "S(1)"


def test_what_zero_1_gathers_is_two_bytes_per_element() -> None:
    plan = regista.plan(program(), "local:2", pins=["input.0=S(0)"], zero=1)
    gathered = [plan.regst[w.regst].tensors[w.index] for task in plan.tasks if "all_gather.param" in task.id for w in task.writes]
    reduced = [plan.regst[w.regst].tensors[w.index] for task in plan.tasks if "reduce_scatter.grad" in task.id for w in task.writes]
    assert {tensor.dtype for tensor in gathered} == {DType.BFLOAT16}
    assert {tensor.dtype for tensor in reduced} == {DType.FLOAT32}, "gradients are reduced as they are accumulated"


def test_gradients_in_bfloat16_are_reduced_in_bfloat16() -> None:
    plan = regista.plan(program(grad_dtype="bf16"), "local:2", pins=["input.0=S(0)", "*:exp_avg*=B"])
    reduced = [plan.regst[w.regst].tensors[w.index] for task in plan.tasks if "all_reduce.grad" in task.id for w in task.writes]
    assert reduced and {tensor.dtype for tensor in reduced if tensor.shape} == {DType.BFLOAT16}


def test_fp32_is_the_step_without_precision() -> None:
    assert program(precision="fp32").graph(2) == Program(program().module, torch.randn(8, 16), optimizer=AdamW(lr=1e-2)).graph(2)


def test_a_plan_says_its_precision_and_a_run_takes_it_from_there() -> None:
    plain = program(precision="fp32")
    plan = regista.plan(plain, "local:1", precision="bf16-mixed", grad_dtype="bf16")
    assert (plan.options["precision"], plan.options["grad_dtype"]) == ("bf16-mixed", "bf16")
    outcome = regista.run(plan, plain, steps=1, performer=regista.Performer.REFERENCE)
    copies = {name: value for name, value in outcome.states.items() if name.endswith(":bfloat16")}
    assert copies and all(torch.equal(value, outcome.states[name.partition(":")[0]].bfloat16()) for name, value in copies.items())


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"precision 'bf8' is unknown; it is one of fp32, bf16-mixed"):
        program(precision="bf8")
    with pytest.raises(InvalidProgram, match=r"grad_dtype 'fp16' is unknown; it is one of fp32, bf16"):
        program(grad_dtype="fp16")


def test_mixed_precision_of_parameters_that_are_not_float32_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"h.0.weight is bfloat16, and 1 more parameters are not float32; give the module in float32"):
        program(Layers().bfloat16())
    with pytest.raises(InvalidProgram, match=r"h.0.weight is float64"):
        program(Layers().double())


@pytest.mark.processes
@pytest.mark.thorough
def test_a_run_resumes_bit_for_bit_though_working_copies_are_not_saved(tmp_path: Path) -> None:
    made = program(Normed())
    plan = regista.plan(made, "local:2", pins=["input.0=S(0)"], zero=1)
    whole = regista.run(plan, made, steps=4, timeout_s=120)
    regista.run(plan, made, steps=2, timeout_s=120, checkpoint=str(tmp_path))
    resumed = regista.run(plan, made, steps=4, timeout_s=120, checkpoint=str(tmp_path), resume=True)
    assert not any(":bfloat16" in state.name for state in Saved(str(find(tmp_path))).manifest.states)
    for name, value in whole.states.items():
        assert torch.equal(resumed.states[name], value), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_in_16_bits_updates_its_statistics_in_32_as_torch_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16).to(dtype)
    norm.running_mean = torch.linspace(-3, 3, 16, dtype=dtype)
    x = (4 * torch.randn(64, 16) + 1).to(dtype)
    program = Program(nn.Sequential(copy.deepcopy(norm), nn.Flatten(0)), x, lambda out: out.float().mean())
    assert program.tracer() is Tracer.RECORDER
    states = regista.run(regista.plan(program, "local:1"), program, steps=1, performer=regista.Performer.REFERENCE).states
    norm(x)
    for name in ("running_mean", "running_var"):
        ours, torchs = states[f"0.{name}"], getattr(norm, name)
        assert ours.dtype is dtype
        assert torch.allclose(ours.float(), torchs.float(), rtol=torch.finfo(dtype).eps, atol=0), (
            "one rounding apart, of sums in another order"
        )
