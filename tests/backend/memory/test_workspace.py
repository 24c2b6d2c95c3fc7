"""Values inside fragments, in workspace that is allocated once: the same bits, no two live values on the same bytes, no more than planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from fragments import compute_tasks, op_of, random_of, task_of
from hypothesis import given
from hypothesis import strategies as st
from matrix import plan_for, program
from torch import Tensor

from backend import run
from backend.memory.arena import planned_bytes
from backend.memory.options import MemoryOptions, RegisterMode
from backend.memory.packing import Lifetime, pack
from backend.ops.fragment import compile_fragment, fragment_ops, values_in_slots
from backend.ops.kernels import kernel
from backend.ops.lifetimes import ESCAPES, last_needs, may_share
from backend.ops.outs import workspace_kernel
from backend.ops.workspace import Workspace
from backend.ops.workspace_layout import HeapLayout, WorkspaceLayout, lay_out_workspace, lifetimes_of
from backend.ops.writable import WritableBlocks, slot_places, writable_blocks
from backend.run_folder.outcome import Outcome
from planner.ir.actors.verify import device_bytes, stream_workspaces
from planner.ir.graph import Ref
from planner.ir.plan import Placement, Plan, Task

WAYS = ("data2", "pipeline2", "zero1", "zero3")
HERE = Placement(id="p", ranks=(0, 1), mesh=(2,))


SPANS = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size_bytes=size, first=first, last=first + length), *map(st.integers, (1, 0, 0), (999, 20, 9))
    ),
    max_size=25,
)


@given(SPANS, st.integers(0, 6000))
def test_what_lives_at_the_same_time_lies_apart_and_below_the_limit(lifetimes: list[Lifetime], limit_bytes: int) -> None:
    offsets = pack(lifetimes, limit_bytes)
    placed = [(offset, lifetime) for offset, lifetime in zip(offsets, lifetimes, strict=True) if offset is not None]
    for number, (offset, lifetime) in enumerate(placed):
        assert offset % 64 == 0 and offset + lifetime.size_bytes <= limit_bytes
        for other, beside in placed[:number]:
            together = lifetime.first <= beside.last and beside.first <= lifetime.last
            assert not together or offset + lifetime.size_bytes <= other or other + beside.size_bytes <= offset


def live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of what lives at once, padding included: no packing needs less."""
    changes: dict[int, int] = {}
    for lifetime in lifetimes:
        changes[lifetime.first] = changes.get(lifetime.first, 0) + lifetime.extent_bytes
        changes[lifetime.last + 1] = changes.get(lifetime.last + 1, 0) - lifetime.extent_bytes
    now = peak = 0
    for _, change in sorted(changes.items()):
        now += change
        peak = max(peak, now)
    return peak


@given(SPANS)
def test_all_is_placed_when_the_limit_is_the_sum_of_all_and_never_below_what_lives_at_once(lifetimes: list[Lifetime]) -> None:
    offsets = pack(lifetimes, sum(lifetime.extent_bytes for lifetime in lifetimes))
    assert None not in offsets
    top = max(
        (offset + lifetime.extent_bytes for offset, lifetime in zip(offsets, lifetimes, strict=True) if offset is not None), default=0
    )
    assert top >= live_bytes(lifetimes)


def test_lifetimes_read_as_the_docstring_draws_them() -> None:
    ops = [
        op_of("aten.mm.default", (Ref("x"), Ref("w")), "v1"),
        op_of("aten.transpose.int", (Ref("v1"), 0, 1), "v2"),
        op_of("aten.relu.default", (Ref("x"),), "v3"),
        op_of("aten.mm.default", (Ref("v2"), Ref("v3")), "v4"),
    ]
    needs = last_needs(ops, copied=(), ending=(), escaping=("v4",))
    assert [needs[name] for name in ("v1", "v2", "v3", "v4")] == [3, 3, 3, ESCAPES]


def test_what_a_returned_view_may_lie_in_escapes_unless_the_view_is_copied_to_its_slot() -> None:
    ops = [op_of("aten.relu.default", (Ref("x"),), "a"), op_of("aten.t.default", (Ref("a"),), "b")]
    assert last_needs(ops, copied=(), ending=(), escaping=("b",))["a"] == ESCAPES
    assert last_needs(ops, copied=("b",), ending=(), escaping=())["a"] == 1
    assert last_needs(ops, copied=(), ending=("b",), escaping=())["a"] == 2


def test_views_and_what_has_no_reliable_schema_count_as_sharing_memory() -> None:
    assert [target for target in SHARING if not may_share(target)] == []
    assert [target for target in APART if may_share(target)] == []


SHARING = (
    "aten.view.default",
    "aten.t.default",
    "aten.split.Tensor",
    "aten.dropout.default",
    "regista.boxing",
    "regista.accumulate",
    "regista.pick",
)
APART = (
    "aten.mm.default",
    "aten.relu.default",
    "aten.matmul.default",
    "aten._to_copy.default",
    "aten.native_layer_norm.default",
    "fused.mm_bias",
    "aten.masked_fill.Scalar",
    "aten.gelu.default",
    "aten.gelu_backward.default",
)


# Random programs with views: every value is a square matrix.

UNARY: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("aten.t.default", ()),
    ("aten.view.default", ((6, 6),)),
    ("aten.relu.default", ()),
    ("aten.neg.default", ()),
    ("aten.clone.default", ()),
    ("regista.accumulate", ()),
    ("aten.slice.Tensor", (0, 0, 6)),
    ("aten._softmax.default", (1, False)),
)
BINARY = ("aten.mm.default", "aten.add.Tensor", "aten.matmul.default")


@st.composite
def programs(draw: st.DrawFn) -> Task:
    names, ops = ["x", "y"], []
    for number in range(draw(st.integers(1, 12))):
        name = f"v{number}"
        if draw(st.booleans()):
            target, rest = draw(st.sampled_from(UNARY))
            ops.append(op_of(target, (Ref(draw(st.sampled_from(names))), *rest), name))
        else:
            ops.append(op_of(draw(st.sampled_from(BINARY)), tuple(Ref(draw(st.sampled_from(names))) for _ in range(2)), name))
        names.append(name)
    written = draw(st.lists(st.sampled_from(names[2:]), min_size=1, max_size=3, unique=True))
    return task_of(ops, "xy", written)


class Recorder:
    def __init__(self) -> None:
        self.seen: dict[str, HeapLayout] = {}

    def __call__(self, name: str, value: Tensor, source: Tensor | None) -> None:
        copied = source is None or value.data_ptr() != source.data_ptr()
        self.seen[name] = HeapLayout(shape=tuple(value.shape), strides=value.stride(), dtype=value.dtype, copied=copied)


def layout_for(
    task: Task, slots: Sequence[int], values: Sequence[Tensor], limit_bytes: int = 1 << 30
) -> tuple[WorkspaceLayout, dict[str, Lifetime]]:
    ops, recorder, writable = fragment_ops(task), Recorder(), WritableBlocks(slots=tuple(slots))
    compile_fragment(task, HERE, 0, writable, into_slots=False, observe=recorder)(*values)
    copied = values_in_slots(task, ops, writable)
    given = frozenset(task.writes[n].name for n in slots)
    escaping = frozenset(a.name for a in task.writes) - given
    lifetimes = lifetimes_of(ops, recorder.seen, copied, given - copied, escaping)
    return lay_out_workspace(lifetimes, recorder.seen, limit_bytes), lifetimes


def inputs() -> list[Tensor]:
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(6, 6, generator=rng) for _ in range(2)]


@given(programs(), st.booleans())
def test_a_random_program_with_views_gives_the_same_bits_from_workspace_full_of_nan(task: Task, with_slots: bool) -> None:
    slots = tuple(range(len(task.writes))) if with_slots else ()
    wanted = compile_fragment(task, HERE, 0)(*inputs())
    memory_for = lambda: [torch.zeros(6, 6) for _ in slots]  # noqa: E731
    layout, _ = layout_for(task, slots, [*inputs(), *memory_for()])
    memory = torch.full((layout.end_bytes,), 255, dtype=torch.uint8)
    got = compile_fragment(task, HERE, 0, WritableBlocks(slots=slots), workspace=layout.places(memory))(*inputs(), *memory_for())
    memory.fill_(255)  # nothing that was returned lies there
    for mine, other in zip(got, wanted, strict=True):
        assert torch.equal(mine, other)


def test_lifetimes_that_ignore_views_are_caught_by_wrong_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a view of ``a`` is read after ``a`` itself, and ``b`` takes its bytes in between."""
    task = task_of(
        [
            op_of("aten.neg.default", (Ref("x"),), "a"),
            op_of("aten.t.default", (Ref("a"),), "view"),
            op_of("aten.neg.default", (Ref("y"),), "b"),
            op_of("aten.mm.default", (Ref("view"), Ref("b")), "out"),
        ],
        "xy",
        ["out"],
    )
    (wanted,) = compile_fragment(task, HERE, 0)(*inputs())

    def computed() -> Tensor:
        layout, _ = layout_for(task, (), inputs())
        memory = torch.zeros(layout.end_bytes, dtype=torch.uint8)
        return compile_fragment(task, HERE, 0, workspace=layout.places(memory))(*inputs())[0]

    assert torch.equal(computed(), wanted)
    monkeypatch.setattr("backend.ops.lifetimes.may_share", lambda target: False)
    assert not torch.equal(computed(), wanted)


@pytest.mark.parametrize(("limit_bytes", "placed"), [(0, 0), (191, 0), (192, 2), (384, 3)])  # 144 B and padding; v1 and v3 may share bytes
def test_what_finds_no_room_lies_on_the_heap_and_is_counted(limit_bytes: int, placed: int) -> None:
    names = ["x", "v1", "v2", "v3", "v4"]
    task = task_of([op_of("aten.neg.default", (Ref(name),), after) for name, after in zip(names, names[1:], strict=False)], "xy", ["v4"])
    layout, lifetimes = layout_for(task, (), inputs(), limit_bytes)
    assert layout.heap_bytes == sum(lifetime.size_bytes for value, lifetime in lifetimes.items() if value not in layout.offsets)
    assert len(layout.offsets) == placed and layout.end_bytes <= limit_bytes
    memory = torch.full((layout.end_bytes,), 255, dtype=torch.uint8)
    (got,) = compile_fragment(task, HERE, 0, workspace=layout.places(memory))(*inputs())
    assert torch.equal(got, inputs()[0])


# The forms that write where a value is to lie.


def _rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


FORMS: Mapping[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "aten.matmul.default": ((_rand(2, 3, 5, 4).transpose(1, 2), _rand(2, 5, 4, 3)), {}),
    "aten.masked_fill.Scalar": ((_rand(4, 4), torch.eye(4, dtype=torch.bool), -1.5), {}),
    "aten._to_copy.default": ((_rand(4, 4),), {"dtype": torch.bfloat16}),
    "fused.log_softmax_gradient": ((_rand(4, 5), _rand(4, 5).log_softmax(1), 1), {}),
    "regista.place": ((_rand(4, 1), 1, torch.tensor([[1], [0], [2], [4]]), torch.arange(5), 5), {}),
    "aten.view.default": ((_rand(3, 4).t(), (2, 6)), {}),
    "fused.mm_bias": ((_rand(3), _rand(2, 4), _rand(4, 3)), {}),
    "aten.clone.default": ((_rand(3, 4).t(),), {}),
}


@pytest.mark.parametrize("target", FORMS)
def test_a_form_leaves_in_its_place_the_bits_that_the_kernel_computes(target: str) -> None:
    args, kwargs = FORMS[target]
    wanted = kernel(target)(*args, **kwargs)
    assert isinstance(wanted, Tensor)
    place = torch.full_like(wanted, 9)
    form = workspace_kernel(target)
    assert form is not None and place.stride() == wanted.stride()
    got = form[0](*args, **kwargs, **{form[1]: place})
    assert got is place or (isinstance(got, Tensor) and got.data_ptr() == place.data_ptr())
    assert torch.equal(place, wanted)


# Whole Plans.


def workspace_for(plan: Plan, rank: int) -> tuple[Workspace, list[Task]]:
    """Nothing that is read may be overwritten: it is read again to compare."""
    tasks = [task for task, on in compute_tasks(plan) if on == rank]
    writable = {task.id: replace(writable_blocks(plan, task, RegisterMode.STATIC), overwritable=frozenset()) for task in tasks}
    return Workspace(plan, rank, tasks, writable, MemoryOptions(poison=True)), tasks


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["gpt", "convnet", "moe"])
def test_every_act_of_a_plan_gives_the_same_bits_from_workspace_within_the_planned_bytes(model: str, way: str) -> None:
    plan = plan_for(model, way)
    rng = torch.Generator().manual_seed(5)
    for rank in range(plan.num_ranks):
        workspace, tasks = workspace_for(plan, rank)
        values = {task.id: [random_of(plan, access, rank, rng) for access in task.reads] for task in tasks}
        slots = {task.id: [random_of(plan, task.writes[n], rank, rng) for n in slot_places(task, RegisterMode.STATIC)] for task in tasks}
        for _ in range(3):  # on the heap, in workspace, and again
            for task in tasks:
                wanted = compile_fragment(task, plan.placement[task.placement], rank)(*values[task.id])
                got = workspace.functions[task.id](*values[task.id], *slots[task.id])
                for access, mine, other in zip(task.writes, got, wanted, strict=True):
                    # A random mask may hide a whole row: its softmax is no number, here and there.
                    torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True, msg=f"{task.id}: {access.name}")
                slots[task.id] = [got[n] for n in slot_places(task, RegisterMode.STATIC)]
        sizes = workspace.sizes
        assert sizes is not None and sizes.planned_bytes == sum(stream_workspaces(plan, rank).values())
        assert 0 < sizes.allocated_bytes <= sizes.planned_bytes


def test_what_is_read_in_another_layout_than_was_noted_gives_the_same_bits() -> None:
    """State that its first update lays out anew: the second act notes again, the third finds its layout; and a layout that never rests."""
    plan = plan_for("mlp", "data2")
    rng = torch.Generator().manual_seed(7)
    turned = lambda value: value.t().contiguous().t() if value.ndim == 2 else value  # noqa: E731
    for layouts in ([False, True, True, True], [False, True, False, True]):
        workspace, tasks = workspace_for(plan, 0)
        slots = {task.id: [random_of(plan, task.writes[n], 0, rng) for n in slot_places(task, RegisterMode.STATIC)] for task in tasks}
        for turn in layouts:
            for task in tasks:
                values = [random_of(plan, access, 0, rng) for access in task.reads]
                values = [turned(value) for value in values] if turn else values
                wanted = compile_fragment(task, plan.placement[task.placement], 0)(*values)
                got = workspace.functions[task.id](*values, *slots[task.id])
                slots[task.id] = [got[n] for n in slot_places(task, RegisterMode.STATIC)]
                for mine, other in zip(got, wanted, strict=True):
                    torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)


def test_a_rank_without_fragments_needs_no_workspace() -> None:
    plan = plan_for("mlp", "data2")
    workspace = Workspace(plan, plan.num_ranks, (), {})
    assert workspace.sizes is not None and workspace.sizes.allocated_bytes == 0 and workspace.functions == {}


def test_the_planned_workspace_is_what_the_plan_counts_beside_its_blocks() -> None:
    for way in WAYS:
        plan = plan_for("gpt", way)
        for rank in range(plan.num_ranks):
            assert device_bytes(plan)[rank] == planned_bytes(plan, rank) + sum(stream_workspaces(plan, rank).values())


@pytest.mark.representatives("gpt-zero3")
@pytest.mark.processes
@pytest.mark.parametrize(
    ("model", "way"), [("gpt", "data2"), ("gpt", "pipeline2"), ("gpt", "zero3"), ("convnet", "data2"), ("moe", "data2")]
)
def test_real_processes_compute_the_same_bits_with_and_without_workspace(model: str, way: str) -> None:
    plan, source = plan_for(model, way), program(model)

    def performed(workspace: bool) -> Outcome:
        memory = MemoryOptions(workspace=workspace, poison=True)
        return run(plan, source.initial_state(plan.micro_batches), source.batch, 3, gradients=True, memory=memory)

    inside = performed(True)
    for memory in inside.memory.values():
        assert 0 < memory["workspace_bytes"] <= memory["workspace_planned_bytes"]
    on_heap = performed(False)
    assert all(memory["workspace_bytes"] == 0 for memory in on_heap.memory.values())
    assert inside.losses == on_heap.losses
    for mine, theirs in ((inside.states, on_heap.states), (inside.gradients, on_heap.gradients)):
        assert mine.keys() == theirs.keys() and mine
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
