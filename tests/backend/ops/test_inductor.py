"""Fragments as compiled code: the same training, each distinct fragment compiled once, and what cannot be compiled named and performed op by op.

All but the last tests put the traced graph itself in the place of what inductor makes of it: what is traced, called and cached is then the same, and
nothing is compiled.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import handmade
import pytest
import torch
from drawn_masks import assert_masks_are_those_of_one_device, noted
from drawn_masks import expected as expected_with_dropout
from drawn_masks import program as program_with_dropout
from fragments import op_of, task_of
from inprocess_cases import assert_bit_equal
from matrix import STEPS, assert_transparent, expected, options_for, plan_for, program, roomy_cluster
from torch import Tensor
from torch.fx import GraphModule

from backend import perform
from backend import run as run_processes
from backend.inprocess import run
from backend.memory.options import MemoryOptions, RegisterMode
from backend.ops.inductor import Kernels, NotCompiled, check_kernels, compiling
from backend.ops.inductor.compiling import content_id
from backend.ops.inductor.tracing import FragmentTypes, trace
from backend.ops.writable import NO_BLOCKS
from planner.ir.errors import Unsupported
from planner.ir.graph import Ref
from planner.ir.plan import Placement, Task
from planner.ir.tensor import DType, TensorType
from planner.parallelism.make import make_plan

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")

Function = Callable[..., Sequence[Tensor]]
HERE = Placement(id="p", ranks=(0, 1), mesh=(2,))


@pytest.fixture
def compiled_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GraphModule]:
    """Every graph that was compiled, by leaving it as it is."""
    graphs: list[GraphModule] = []

    def by_nobody(graph: GraphModule, operands: Sequence[Tensor]) -> tuple[Function, bool]:
        graphs.append(graph)
        return graph, False

    monkeypatch.setattr(compiling, "by_inductor", by_nobody)
    monkeypatch.setattr(compiling, "_COMPILED", {})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return graphs


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("convnet", "data2"),
        pytest.param("gpt", "data2_tensor2", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.usefixtures("compiled_graphs")
def test_a_plan_with_traced_fragments_equals_training_on_one_device(model: str, way: str) -> None:
    plan, source = plan_for(model, way), program(model)
    outcome = run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True, kernels=Kernels.COMPILED)
    assert_transparent(outcome, expected(model, plan.micro_batches))
    assert outcome.trace.about["kernels"] == "compiled" and "fragments op by op" not in outcome.trace.about


@pytest.mark.usefixtures("compiled_graphs")
def test_masks_of_dropout_in_traced_fragments_are_those_of_one_device() -> None:
    made = program_with_dropout("mlp")
    plan = make_plan(
        made.graph(4), model="mlp", batch_size=made.batch_size, cluster=roomy_cluster(2), options=options_for("mlp", "pipeline2")
    )
    with noted() as masks:
        outcome = perform(plan, made.initial_state(plan.micro_batches), made.batch, 2, gradients=True, kernels=Kernels.COMPILED)
    eager, alone = expected_with_dropout("mlp", plan.micro_batches, 2)
    assert_masks_are_those_of_one_device(masks, alone)
    assert_transparent(outcome, eager)


@pytest.mark.parametrize("registers", RegisterMode)
def test_a_fragment_is_compiled_once_for_all_ranks_acts_and_runs(registers: RegisterMode, compiled_graphs: list[GraphModule]) -> None:
    plan = handmade.data_parallel(2, 2)
    memory = MemoryOptions(registers=registers)
    found = []
    for _ in range(2):
        outcome = run(plan, handmade.start(), handmade.batches(2), STEPS, gradients=True, memory=memory, kernels=Kernels.COMPILED)
        assert_bit_equal(outcome, perform(plan, handmade.start(), handmade.batches(2), STEPS, gradients=True))
        found.append(outcome.trace.about["compiled fragments"])
    assert len(compiled_graphs) == 2  # forward and backward
    assert found == [
        "ranks 0: 2 of 2, 0 of them from the cache; ranks 1: 2 of 2, 2 of them from the cache",
        "2 of 2, 2 of them from the cache",
    ]


@pytest.mark.parametrize("fails", ["when it is compiled", "in its first act"])
def test_a_fragment_that_cannot_be_compiled_is_performed_op_by_op_and_named(
    fails: str, monkeypatch: pytest.MonkeyPatch, compiled_graphs: list[GraphModule]
) -> None:
    def refuse(*_: Tensor) -> Sequence[Tensor]:
        raise RuntimeError("no such lowering\nand a hundred lines")

    by_nobody = compiling.by_inductor

    def by_somebody(graph: GraphModule, operands: Sequence[Tensor]) -> tuple[Function, bool]:
        function, was_there = by_nobody(graph, operands)
        if len(compiled_graphs) == 1:
            return function, was_there
        return (refuse, False) if fails == "in its first act" else (refuse(), False)

    monkeypatch.setattr(compiling, "by_inductor", by_somebody)
    plan = handmade.data_parallel(1, 2)
    with pytest.warns(NotCompiled, match=r"1 fragments could not be compiled .*: backward \(.*RuntimeError: no such lowering\)"):
        outcome = run(plan, handmade.start(), handmade.batches(2), STEPS, gradients=True, kernels=Kernels.COMPILED)
    assert outcome.trace.about["compiled fragments"] == "1 of 2, 0 of them from the cache"
    assert outcome.trace.about["fragments op by op"].startswith("backward: ")
    assert_bit_equal(outcome, perform(plan, handmade.start(), handmade.batches(2), STEPS, gradients=True))


def two_ops(first: str = "x", constant: float = 2.0) -> Task:
    ops = [op_of("aten.mul.Tensor", (Ref(first), constant), f"{first}.y"), op_of("aten.relu.default", (Ref(f"{first}.y"),), f"{first}.h")]
    return task_of(ops, [first], [f"{first}.h"])


def test_kernels_that_stand_for_ops_of_torchs_are_compiled_as_these_ops() -> None:
    ops = [
        op_of("aten.masked_fill.Scalar", (Ref("x"), Ref("mask"), 1.0), "filled"),
        replace(op_of("aten.gelu.default", (Ref("filled"),), "y"), kwargs=(("approximate", "tanh"),)),
    ]
    task = task_of(ops, ["x", "mask"], ["y"])
    reads = TensorType((256, 256), DType.FLOAT32), TensorType((256, 256), DType.BOOL)
    graph, _ = trace(task, HERE, 0, NO_BLOCKS, FragmentTypes(reads=reads, slots=(), device="cpu", micro_batch=False))
    x, mask = torch.randn(256, 256), torch.rand(256, 256) < 0.5
    (y,) = graph(x, mask)
    assert torch.equal(y, torch.nn.functional.gelu(torch.masked_fill(x, mask, 1.0), approximate="tanh"))
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] == [op.target for op in ops]


def test_fragments_share_code_if_they_differ_in_names_alone() -> None:
    def types(*shape: int) -> FragmentTypes:
        return FragmentTypes(reads=(TensorType(shape, DType.FLOAT32),), slots=(), device="cpu", micro_batch=False)

    def name(task: Task, rank: int = 0, shape: tuple[int, ...] = (2, 3)) -> str:
        return content_id(task, HERE, rank, NO_BLOCKS, types(*shape))

    assert name(two_ops()) == name(two_ops("another")) == name(replace(two_ops(), id="t2"), rank=1)
    assert len({name(two_ops()), name(two_ops(constant=3.0)), name(two_ops(), shape=(3, 2))}) == 3
    cut = task_of([op_of("regista.boxing", (Ref("x"), "B", "S(0)", 0), "part")], ["x"], ["part"])
    assert name(cut) != name(cut, rank=1)


def test_a_host_without_compiler_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unsupported, match=r"this host lacks a C\+\+ compiler \(no-such-compiler\).*install it, or leave --kernels out"):
        run_processes(handmade.data_parallel(2, 1), handmade.start(), handmade.batches(1), 1, kernels=Kernels.COMPILED)
    check_kernels(Kernels.EAGER, {"cpu"})


def test_a_cache_that_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(Unsupported, match=r"compiled code is kept in .*, which cannot be made"):
        check_kernels(Kernels.COMPILED, {"cpu"})


@pytest.mark.thorough
@pytest.mark.processes
def test_code_of_inductor_trains_as_ops_do_and_processes_compile_it_once_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # What makes compiling slow and pays only for more kernels than these: headers compiled first, vector instructions tried out.
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
    plan, batch = handmade.data_parallel(2, 2), handmade.batches(2)
    outcome = run_processes(plan, handmade.start(), batch, STEPS, gradients=True, timeout_s=60, kernels=Kernels.COMPILED)
    eager = perform(plan, handmade.start(), batch, STEPS, gradients=True)
    torch.testing.assert_close(outcome.losses, eager.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(dict(outcome.states), dict(eager.states), rtol=1e-4, atol=2e-5)
    found = re.findall(r"2 of 2, (\d) of them from the cache", outcome.trace.about["compiled fragments"])
    assert sum(map(int, found)) == 2 or found == ["1"]  # of two fragments on two ranks; one each, in the same words
