"""Registers allocated once: what is allocated is the Plan's number, nothing shares memory, and results do not change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import handmade
import pytest
import torch
from fragments import compute_tasks, random_of
from hypothesis import given
from hypothesis import strategies as st
from matrix import plan_for, program
from torch import Tensor

import regista
from backend import run
from backend.acts.act import accumulate
from backend.comm.collectives import scratch_bytes
from backend.comm.scratch import alike, packed
from backend.layout.sharding import torch_dtype
from backend.memory.arena import Arena, arena_bytes, carve, planned_bytes, register_mode, regsts_on, zeroed_memory
from backend.memory.blocks import Blocks, laid_out, store
from backend.memory.options import DEFAULT_MEMORY, MemoryOptions, RegisterMode
from backend.ops.bindings import DirectBindings, accumulate_into
from backend.ops.fragment import compile_fragment
from backend.ops.writable import writable_blocks
from backend.run_folder.files import Options, load_options, save_options
from backend.run_folder.outcome import Outcome
from backend.worker.registers import RUNTIME_BYTES, Registers
from planner.frontend import Program
from planner.ir.actors.actor import build_actors
from planner.ir.actors.verify import device_bytes, verify
from planner.ir.errors import InvalidPlan, InvalidProgram, OutOfMemory
from planner.ir.plan import Fragment, Plan, RegstKind, TaskKind
from regista.api import program_of
from regista.clusters import resolve_cluster

TIGHT = MemoryOptions(workspace=False, return_freed=True)

WAYS = ("data2", "pipeline2", "zero1", "zero3")
STEPS = 3


def workspace_bytes(plan: Plan, rank: int) -> int:
    """The largest workspace of each stream of the rank."""
    largest: dict[str, int] = {}
    for task in plan.tasks:
        if isinstance(task.body, Fragment) and rank in plan.ranks_of(task):
            largest[task.stream] = max(largest.get(task.stream, 0), task.body.workspace_bytes)
    return sum(largest.values())


def span(value: Tensor) -> tuple[int, int]:
    return value.data_ptr(), value.data_ptr() + value.nbytes


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_an_arena_is_as_large_as_the_plan_says_and_its_slots_are_apart(model: str, way: str) -> None:
    plan = plan_for(model, way)
    for rank in range(plan.num_ranks):
        arena = Arena.make(plan, rank)
        assert arena.allocated_bytes == planned_bytes(plan, rank) == device_bytes(plan)[rank] - workspace_bytes(plan, rank)
        spans = sorted(span(t) for slots in arena.tables.values() for row in slots for t in row if t.numel())
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
        placement = {r.id: plan.placement[r.placement] for r in regsts_on(plan, rank)}
        for regst in regsts_on(plan, rank):
            for row in arena.tables[regst.id]:
                for slot, tensor in zip(row, regst.tensors, strict=True):
                    wanted = tensor.local_type(placement[regst.id], rank)
                    assert (tuple(slot.shape), slot.dtype) == (wanted.shape, torch_dtype(wanted.dtype))
        arena.check(plan)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 24)), min_size=1, max_size=5))
def test_tensors_are_one_bucket_exactly_when_less_than_a_cache_line_lies_between_them(parts: list[tuple[int, int]]) -> None:
    memory, at, slots = torch.zeros(1000), 0, []
    for length, gap in parts:
        slots.append(memory[at : at + length])
        at += length + gap
    whole = packed(slots)
    assert (whole is not None) == all(4 * gap < 64 for _, gap in parts[:-1])
    if whole is not None:
        assert span(whole) == (span(slots[0])[0], span(slots[-1])[1])


def test_the_tensors_of_one_dtype_in_a_block_are_one_bucket() -> None:
    plan = plan_for("gpt", "data2")
    tables = Arena.make(plan, 0).tables
    buckets = {access.regst for access in plan.gradients.values()}
    assert max(len(plan.regst[regst].tensors) for regst in buckets) > 5
    for regst in buckets:
        assert all(packed(row) is not None for row in tables[regst])


def test_a_plan_is_static_when_all_blocks_fit_and_dynamic_when_only_its_live_bytes_do() -> None:
    plan = handmade.pipeline(3, quota=9)  # more than is ever in flight
    need = max(device_bytes(plan).values())
    with_memory = lambda limit: replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=limit)))  # noqa: E731
    assert register_mode(with_memory(need)) is RegisterMode.STATIC
    assert register_mode(with_memory(need - 1)) is RegisterMode.DYNAMIC
    verify(with_memory(need - 1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ["mlp", "gpt", "convnet"])
def test_a_fragment_that_writes_into_slots_computes_the_same_bits_and_shares_no_memory_with_what_it_read(model: str, way: str) -> None:
    plan = plan_for(model, way)
    rng = torch.Generator().manual_seed(5)
    for task, rank in compute_tasks(plan):
        placement = plan.placement[task.placement]
        values = [random_of(plan, access, rank, rng) for access in task.reads]
        writable = replace(
            writable_blocks(plan, task, RegisterMode.STATIC), overwritable=frozenset()
        )  # what is read is compared afterwards
        places = writable.slots
        slots = [random_of(plan, task.writes[n], rank, rng) for n in places]
        wanted = compile_fragment(task, placement, rank)(*values)
        read = [span(value) for value in values]
        for into_slots in (False, True):  # the first act, which lays the slots out, and all others
            got = compile_fragment(task, placement, rank, writable, into_slots=into_slots)(*values, *slots)
            for n, (a, b) in enumerate(zip(got, wanted, strict=True)):
                assert torch.equal(a, b), f"{task.id}: {task.writes[n].name}"
            for n, slot in zip(places, slots, strict=True):
                begin, end = span(slot)
                assert span(got[n]) == (begin, end)
                assert all(end <= start or stop <= begin for start, stop in read)
                assert not into_slots or got[n] is slot
            slots = [got[n].copy_(random_of(plan, task.writes[n], rank, rng)) for n in places]
            assert [slot.stride() for slot in slots] == [laid_out(slots[k], wanted[n]).stride() for k, n in enumerate(places)]


def test_state_that_is_read_and_replaced_in_one_act_is_written_last() -> None:
    """``w_new = w - step`` into w's own block, and another result that still needs the old w."""
    plan = handmade.data_parallel(1)
    update = next(t for t in plan.tasks if any(plan.regst[a.regst].kind is RegstKind.STATE for a in t.writes))
    values = [torch.rand(plan.regst[a.regst].tensors[a.index].shape) for a in update.reads]
    wanted = compile_fragment(update, plan.placement[update.placement], 0)(*values)
    held = [value.clone() for value in values]
    names = [a.name for a in update.reads]
    homes = {(a.regst, a.index): held[names.index(a.name)] for a in update.reads}
    writable = replace(writable_blocks(plan, update, RegisterMode.STATIC), overwritable=frozenset())
    slots = [homes[update.writes[n].regst, update.writes[n].index] for n in writable.slots]
    got = compile_fragment(update, plan.placement[update.placement], 0, writable)(*held, *slots)
    assert writable.slots and writable.state == writable.slots
    for a, b in zip(got, wanted, strict=True):
        assert torch.equal(a, b)


@given(st.integers(1, 5), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.integers(0, 99))
def test_adding_up_in_a_slot_gives_the_bits_of_adding_up_in_new_memory(acts: int, dtype: torch.dtype, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    parts = [torch.randn(7, generator=rng).to(dtype) for _ in range(acts)]
    slot, held = torch.full((7,), float("nan"), dtype=dtype), None
    for phase, part in enumerate(parts):
        accumulate_into(slot, part, acts, phase)
        held = accumulate(held, part.clone(), acts)
    assert held is not None and torch.equal(slot, held)


def test_a_value_of_another_shape_than_its_block_is_refused() -> None:
    with pytest.raises(InvalidPlan, match=r"shape \(1,\) was computed for a block of shape \(4,\)"):
        store(torch.zeros(4), torch.ones(1))


def test_a_block_that_moved_or_changed_its_shape_is_found_at_the_end() -> None:
    plan = handmade.pipeline(2)
    arena = Arena.make(plan, 0)
    regst = next(r for r in regsts_on(plan, 0) if r.tensors)
    arena.tables[regst.id][0][0] = arena.tables[regst.id][0][0].clone()
    with pytest.raises(InvalidPlan, match=f"block 0 of regst {regst.id}"):
        arena.check(plan)


def test_an_arena_of_another_size_than_the_plan_says_is_found_at_the_end() -> None:
    plan = handmade.pipeline(2)
    with pytest.raises(InvalidPlan, match=r"allocated \d+ B for registers, the plan says \d+ B"):
        replace(Arena.make(plan, 0), allocated_bytes=1).check(plan)


def test_live_blocks_beyond_the_devices_memory_are_refused_with_both_numbers() -> None:
    plan = handmade.pipeline(2)
    small = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=10)))
    blocks = Blocks(small, 0)
    blocks.peak_bytes = 11
    with pytest.raises(OutOfMemory, match="rank 0 held 11 B of blocks at once, but a device of handmade has 10 B"):
        blocks.check()
    blocks.peak_bytes = planned_bytes(small, 0) + 1
    with pytest.raises(InvalidPlan, match="all blocks of the plan are"):
        blocks.check()


def test_a_released_block_is_poisoned_when_its_last_reader_has_done_with_it_and_not_before() -> None:
    plan = handmade.pipeline(2, quota=1)
    regst = next(r for r in regsts_on(plan, 0) if len(plan.consumers[r.id]) > 1 and r.kind is RegstKind.DATA)
    blocks = Blocks(plan, 0, arena=Arena.make(plan, 0), poison=True)
    blocks.hold(regst.id, 0, 0, torch.ones(blocks.read(regst.id, 0, 0).shape))
    kept = blocks.read(regst.id, 0, 0).view(-1)  # what no consumer may do: keep a view
    blocks.complete(regst.id, 0)
    for _ in range(len(plan.consumers[regst.id]) - 1):
        blocks.release(regst.id, 0)
    assert torch.equal(kept, torch.ones_like(kept))
    blocks.release(regst.id, 0)
    assert kept.isnan().all()


def test_both_ends_of_a_transfer_carve_the_same_places() -> None:
    plan = handmade.pipeline(2)
    here = regsts_on(plan, 1)
    memory = zeroed_memory(arena_bytes(plan, here))
    one, other = carve(plan, 1, here, memory), carve(plan, 1, here, memory)
    for regst, slots in one.items():
        for row, same in zip(slots, other[regst], strict=True):
            assert [span(a) for a in row] == [span(b) for b in same]


# Real processes.


def performed(plan: Plan, source: Program, memory: MemoryOptions = DEFAULT_MEMORY) -> Outcome:
    return run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True, memory=memory)


def assert_same_bits(one: Outcome, other: Outcome) -> None:
    assert one.losses == other.losses
    for mine, theirs in ((one.states, other.states), (one.gradients, other.gradients)):
        assert mine.keys() == theirs.keys() and mine
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


@pytest.mark.representatives("zero3")
@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_real_processes_allocate_what_the_plan_says_and_compute_the_same_bits_either_way(way: str) -> None:
    plan, source = plan_for("gpt", way), program("gpt")
    static = performed(plan, source)
    assert static.trace.about["registers"] == "static"
    for rank, memory in static.memory.items():
        assert memory["allocated_bytes"] == memory["planned_bytes"] == device_bytes(plan)[rank] - workspace_bytes(plan, rank)
        assert static.trace.register_bytes[str(rank)] <= memory["planned_bytes"]
    dynamic = performed(plan, source, MemoryOptions(registers=RegisterMode.DYNAMIC))
    assert dynamic.trace.about["registers"] == "dynamic"
    assert_same_bits(static, dynamic)


@pytest.mark.processes
def test_no_act_reads_a_block_after_it_was_given_back() -> None:
    """Quota 1 everywhere: the next micro-batch lands where the last one lay, and what is released is NaN."""
    plan = plan_for("gpt", "pipeline2")
    ones = plan.with_quotas({r.id: 1 for r in plan.regsts if r.quota > 1})
    try:
        verify(ones)
    except InvalidPlan:
        ones = plan  # 1F1B needs more in flight
    clean = performed(ones, program("gpt"))
    assert_same_bits(performed(ones, program("gpt"), MemoryOptions(poison=True)), clean)


@pytest.mark.processes
def test_a_plan_whose_blocks_do_not_all_fit_is_performed_block_by_block() -> None:
    plan = handmade.pipeline(3, quota=9)
    tight = replace(
        plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=max(device_bytes(plan).values()) - 1))
    )
    outcome = run(tight, handmade.start(), handmade.batches(3), STEPS)
    assert outcome.trace.about["registers"] == "dynamic"
    assert all(memory["allocated_bytes"] == 0 for memory in outcome.memory.values())
    assert all(peak <= tight.cluster.device.memory_bytes for peak in outcome.trace.register_bytes.values())


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "memory_options"),
    [({"pins": ("input.0=S(0)",)}, TIGHT), ({"stages": 2, "micro_batches": 4}, TIGHT), ({"stages": 2, "micro_batches": 4}, DEFAULT_MEMORY)],
    ids=["data parallel, tight", "pipeline, tight", "pipeline"],
)
def test_a_process_holds_all_blocks_and_is_at_most_5_percent_larger_than_its_plan_and_the_stated_constant(
    options: dict[str, object], memory_options: MemoryOptions
) -> None:
    """The plan is of hundreds of MB, so that the constant does not hide it.

    Data parallel only with an allocator that gives back what is freed: what gloo and the buckets of its collectives take is not planned.
    """
    source = program_of("zoo:gpt?layers=4&width=512&heads=8&batch=16&seq=128")
    plan = regista.plan(source, resolve_cluster("local:2"), **options)  # type: ignore[arg-type]
    outcome = regista.run(plan, source, steps=3, memory=memory_options)
    for rank, memory in outcome.memory.items():
        assert memory["device_bytes"] > 150 << 20
        if not memory["process_peak_bytes"]:
            pytest.skip("this kernel does not tell a process's peak")
        assert memory["scratch_bytes"] == scratch_bytes(plan, rank), "what collectives hold follows from the Plan"
        wanted = memory["device_bytes"] + memory["mapped_bytes"] + memory["scratch_bytes"] + RUNTIME_BYTES
        assert memory["allocated_bytes"] <= memory["process_peak_bytes"] - memory["base_bytes"] <= 1.05 * wanted


def test_static_registers_that_do_not_fit_are_refused() -> None:
    plan = handmade.pipeline(2)
    small = replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, memory_bytes=1)))
    with pytest.raises(InvalidProgram, match="memory option registers=static, but all blocks at once take"):
        Registers(small, 0, one_host=True, memory=MemoryOptions(registers=RegisterMode.STATIC))


def test_memory_options_reach_the_workers_as_they_were_given(tmp_path: Path) -> None:
    memory = MemoryOptions(registers=RegisterMode.DYNAMIC, shared_memory=False, workspace=False, return_freed=True, poison=True)
    options = Options(run_id="r", steps=3, timeout_s=7.5, memory=memory)
    save_options(tmp_path, options)
    assert load_options(tmp_path) == options


def test_a_value_laid_out_otherwise_in_a_later_act_leaves_the_other_blocks_alone() -> None:
    """Only the first value may choose the layout: later, to lay out one block anew would read the data of the others in another order."""
    plan = handmade.pipeline(3, quota=2)
    blocks = Blocks(plan, 0, arena=Arena.make(plan, 0))
    actor = build_actors(plan, 1)[0]["forward.0", 0]
    bindings = DirectBindings(actor, blocks)
    shapes = [plan.regst[a.regst].tensors[a.index].local_type(plan.placement["s0"], 0).shape for a in actor.task.writes]
    into_slots, turned = [torch.rand(s) for s in shapes], [torch.rand(s[::-1]).t() for s in shapes]
    (y,) = [n for n, a in enumerate(actor.task.writes) if a.regst == "y"]
    bindings.store(into_slots)
    actor.outputs["y"].produced += 1
    bindings.store(turned)
    assert torch.equal(blocks.read("y", 0, 0), into_slots[y])
    assert torch.equal(blocks.read("y", 1, 0), turned[y])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_two_buckets_are_copied_at_once_exactly_when_their_tensors_lie_at_the_same_distances(parts: list[tuple[int, int, int]]) -> None:
    memory, ats = (torch.zeros(1000), torch.arange(1000.0)), [0, 0]
    slots, values = [], []
    for length, gap, other in parts:
        slots.append(memory[0][ats[0] : ats[0] + length])
        values.append(memory[1][ats[1] : ats[1] + length])
        ats = [ats[0] + length + gap, ats[1] + length + other]
    pair = alike(slots, values)
    assert (pair is not None) == all(gap == other for _, gap, other in parts[:-1])
    if pair is not None:
        pair[0].copy_(pair[1])
        assert all(torch.equal(slot, value) for slot, value in zip(slots, values, strict=True))


def test_the_gradients_of_a_data_parallel_plan_go_into_their_bucket_in_one_copy() -> None:
    plan = plan_for("gpt", "data2")
    tables = Arena.make(plan, 0).tables
    buckets = [t for t in plan.tasks if t.kind is TaskKind.BOXING and len(t.reads) > 5]
    assert buckets
    for task in buckets:
        read, written = ([tables[a.regst][0][a.index] for a in accesses] for accesses in (task.reads, task.writes))
        assert alike(written, read) is not None
