"""The inter-op search against exhaustive enumeration, against Alpa's recurrence written anew, and what must be monotone in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from math import inf

import pytest

from planner.ir.errors import Unsupported
from planner.stages.interop import interop_plan
from planner.stages.micro import interleaved_in_flight
from planner.stages.pipeline import Interop, StagePlan, StagePrice, Submesh, held_bytes, step_s, submeshes
from simulator.theory import pipeline_step_s

SEEDS = range(30)


def random_problem(seed: int, *, memory: bool = True, links: bool = True, once: bool = True) -> Interop:
    """Up to 4 layers on up to 2 x 4 devices; up to 2 variants per stage, some stages that cannot be built."""
    rng = random.Random(seed)

    @cache
    def price(first: int, last: int, mesh: Submesh) -> tuple[StagePrice, ...]:
        share = (last - first + 1) / mesh.size
        return tuple(
            StagePrice(
                forward_s=rng.randint(1, 9) * share,
                backward_s=rng.randint(1, 9) * share,
                per_step_s=float(rng.randint(0, 30) * once),
                state_bytes=rng.randint(1, 9) * share,
                activation_bytes_per_micro_batch=rng.randint(1, 5) * share,
                workspace_bytes=float(rng.randint(0, 2)),
            )
            for _ in range(rng.randint(0 if first else 1, 2))
        )

    @cache
    def transfer_s(last: int, sender: Submesh, receiver: Submesh, leaves_node: bool) -> float:
        return float(rng.randint(0, 5) * (2 if leaves_node else 1) * links)

    return Interop(
        num_layers=rng.randint(1, 4),
        num_nodes=rng.choice([1, 2]),
        devices_per_node=rng.choice([1, 2, 4]),
        micro_batches=rng.randint(1, 6),
        memory_bytes=rng.choice([10.0, 20.0, 40.0]) if memory else inf,
        price=price,
        transfer_s=transfer_s,
    )


Layout = tuple[tuple[int, int, Submesh, int], ...]


def layouts(problem: Interop, layer: int = 0, device: int = 0) -> Iterator[Layout]:
    """Every way to hand out all layers and all devices in rank order: (first, last, sub-mesh, first device) per stage."""
    if layer == problem.num_layers and device == problem.num_devices:
        yield ()
    for mesh in submeshes(problem.num_nodes, problem.devices_per_node):
        place = device % problem.devices_per_node
        straddles = place + mesh.devices > problem.devices_per_node if mesh.nodes == 1 else place != 0
        if device + mesh.size <= problem.num_devices and not straddles:
            for last in range(layer, problem.num_layers):
                for rest in layouts(problem, last + 1, device + mesh.size):
                    yield (layer, last, mesh, device), *rest


def exhaustive_s(problem: Interop) -> float:
    """The least step time over all layouts and all variants that fit."""
    best = inf
    for layout in layouts(problem):
        if problem.same_size and len({mesh.size for _, _, mesh, _ in layout}) > 1:
            continue
        links_s = sum(
            problem.transfer_s(a[1], a[2], b[2], problem.num_nodes > 1 and b[3] % problem.devices_per_node == 0)
            for a, b in pairwise(layout)
        )
        menus = []
        for after, (first, last, mesh, _) in zip(reversed(range(len(layout))), layout, strict=True):
            flying = min(problem.micro_batches, after + 1)
            menus.append([p for p in problem.price(first, last, mesh) if held_bytes(p, flying) <= problem.memory_bytes])
        for variants in product(*menus):
            times = [p.forward_s + p.backward_s for p in variants]
            once_s = max(p.per_step_s for p in variants)
            best = min(best, sum(times) + links_s + (problem.micro_batches - 1) * max(times) + once_s)
    return best


def found_s(problem: Interop) -> float:
    """The search's step time; infinite where it refuses."""
    try:
        plan = interop_plan(problem)
    except Unsupported:
        return inf
    assert plan.lower_bound_s == plan.step_s == pytest.approx(step_s(plan.stages, problem.micro_batches, problem.virtual))
    return plan.step_s


@pytest.mark.parametrize("same_size", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_plan_is_as_fast_as_the_best_of_all_layouts_and_variants(seed: int, same_size: bool) -> None:
    problem = replace(random_problem(seed), same_size=same_size)
    assert found_s(problem) == pytest.approx(exhaustive_s(problem))


def alpa_s(problem: Interop) -> float:
    """Alpa's equations 2-5 as they stand: for every limit, F(s, k, d), the least sum of s stages that hold layers k.. on d devices."""
    meshes = submeshes(problem.num_nodes, problem.devices_per_node)
    layers = problem.num_layers

    @cache
    def stage_s(first: int, last: int, mesh: Submesh) -> float:
        return min((p.forward_s + p.backward_s for p in problem.price(first, last, mesh)), default=inf)

    def least(limit_s: float) -> float:
        @cache
        def f(stages: int, layer: int, devices: int) -> float:
            if stages == 0 or layer == layers or devices <= 0:
                return 0.0 if (stages, layer, devices) == (0, layers, 0) else inf
            return min(
                seconds + f(stages - 1, last + 1, devices - mesh.size)
                for last in range(layer, layers)
                for mesh in meshes
                for seconds in [stage_s(layer, last, mesh) if stage_s(layer, last, mesh) <= limit_s else inf]
            )

        return min(f(s, 0, problem.num_devices) for s in range(1, layers + 1))

    limits = {stage_s(a, b, mesh) for a in range(layers) for b in range(a, layers) for mesh in meshes}
    return min((least(limit) + (problem.micro_batches - 1) * limit for limit in limits if limit < inf), default=inf)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_transfers_and_memory_limit_it_is_alpas_recurrence(seed: int) -> None:
    problem = replace(random_problem(seed, memory=False, links=False, once=False), rank_order=False)
    assert found_s(problem) == pytest.approx(alpa_s(problem))


@pytest.mark.parametrize("seed", SEEDS)
def test_more_memory_is_never_worse(seed: int) -> None:
    problem = random_problem(seed)
    assert found_s(replace(problem, memory_bytes=problem.memory_bytes * 1.5)) <= found_s(problem)


@pytest.mark.parametrize("seed", SEEDS)
def test_slower_links_are_never_better(seed: int) -> None:
    problem = random_problem(seed)
    slower: Callable[[int, Submesh, Submesh, bool], float] = lambda *where: 3 * problem.transfer_s(*where) + 0.5  # noqa: E731
    assert found_s(replace(problem, transfer_s=slower)) >= found_s(problem)


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_of_one_size_are_never_better_than_free_ones(seed: int) -> None:
    problem = random_problem(seed)
    assert found_s(replace(problem, same_size=True)) >= found_s(problem) * (1 - 1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_keeping_all_micro_batches_is_never_better(seed: int) -> None:
    problem = random_problem(seed)
    assert found_s(replace(problem, keep_all=True)) >= found_s(problem)


def blocks(num_layers: int, nodes: int, node: int, micro_batches: int, memory_bytes: float) -> Interop:
    """Equal layers; tensor parallelism costs 5 % per device, recomputing a third of forward; activations outweigh the state."""

    def price(first: int, last: int, mesh: Submesh) -> list[StagePrice]:
        layers = last - first + 1
        return [
            StagePrice(
                forward_s=layers * again / mesh.size * (1 + 0.05 * mesh.size),
                backward_s=layers * 2 / mesh.size * (1 + 0.05 * mesh.size),
                state_bytes=layers * 4 / mesh.size,
                activation_bytes_per_micro_batch=layers * kept / mesh.size,
            )
            for again, kept in ((1.0, 1.0), (2.0, 0.1))
        ]

    return Interop(
        num_layers=num_layers,
        num_nodes=nodes,
        devices_per_node=node,
        micro_batches=micro_batches,
        memory_bytes=memory_bytes,
        price=price,
        transfer_s=lambda last, sender, receiver, leaves: 0.05 if leaves else 0.01,
        kinds=["block"] * num_layers,
    )


def covers(plan: StagePlan, problem: Interop) -> bool:
    layers = [layer for stage in plan.stages for layer in range(stage.first, stage.last + 1)]
    starts = [stage.first_device for stage in plan.stages]
    ends = [stage.first_device + stage.submesh.size for stage in plan.stages]
    return layers == list(range(problem.num_layers)) and starts == [0, *ends[:-1]] and ends[-1] == problem.num_devices


@pytest.mark.parametrize("memory_bytes", [12.0, 20.0, 1e9])
def test_every_layer_and_device_is_used_once_and_every_stage_fits(memory_bytes: float) -> None:
    problem = blocks(16, 2, 4, 12, memory_bytes)
    plan = interop_plan(problem)
    assert covers(plan, problem)
    for after, stage in zip(reversed(range(len(plan.stages))), plan.stages, strict=True):
        assert held_bytes(stage.price, min(12, after + 1)) <= memory_bytes


def test_in_rank_order_no_stage_straddles_two_nodes() -> None:
    """Layers that only run on 1, 2, 4 and 1 devices: the third would begin at device 3 of 4."""
    problem = replace(
        blocks(4, 2, 4, 2, inf),
        kinds=None,
        price=lambda a, b, mesh: [StagePrice(forward_s=1.0, backward_s=1.0)] if a == b and mesh.size == (1, 2, 4, 1)[a] else [],
    )
    assert found_s(problem) == inf
    assert found_s(replace(problem, rank_order=False)) < inf


def test_recomputing_is_chosen_where_only_it_fits() -> None:
    roomy, tight = interop_plan(blocks(8, 1, 4, 8, 1e9)), interop_plan(blocks(8, 1, 4, 8, 9.0))
    assert {stage.variant for stage in roomy.stages} == {0}
    assert {stage.variant for stage in tight.stages} == {1}
    assert tight.step_s > roomy.step_s


def test_equal_kinds_are_priced_once_and_give_the_same_plan() -> None:
    asked: list[tuple[int, int, Submesh]] = []
    problem = blocks(12, 1, 4, 8, 30.0)

    def counted(first: int, last: int, mesh: Submesh) -> list[StagePrice]:
        asked.append((first, last, mesh))
        return list(problem.price(first, last, mesh))

    plan = interop_plan(replace(problem, price=counted))
    assert len(asked) == 12 * 3  # a length and a sub-mesh each
    asked.clear()
    assert interop_plan(replace(problem, price=counted, kinds=None)) == plan
    assert len(asked) == 12 * 13 // 2 * 3


def test_few_of_the_limits_are_tried() -> None:
    rng = random.Random(0)
    weights = [rng.uniform(1, 2) for _ in range(20)]
    problem = replace(
        blocks(20, 2, 4, 16, 1e9),
        kinds=None,
        price=lambda a, b, mesh: [StagePrice(forward_s=sum(weights[a : b + 1]) / mesh.size**0.9, backward_s=0.0)],
    )
    plan = interop_plan(problem)
    assert plan.limits == 20 * 21 // 2 * 4  # every range on every sub-mesh has its own time
    assert plan.tried < plan.limits / 20


def equal_chunks(num_layers: int, devices: int, virtual: int, micro_batches: int, memory_bytes: float = inf) -> Interop:
    return Interop(
        num_layers=num_layers,
        num_nodes=1,
        devices_per_node=devices,
        micro_batches=micro_batches,
        memory_bytes=memory_bytes,
        price=lambda a, b, mesh: (
            [StagePrice(forward_s=1.0 * (b - a + 1), backward_s=2.0 * (b - a + 1), activation_bytes_per_micro_batch=1.0 * (b - a + 1))]
            if mesh.size == 1
            else []
        ),
        transfer_s=lambda *where: 0.0,
        same_size=True,
        virtual=virtual,
    )


def test_equal_stages_take_the_time_of_theory() -> None:
    plan = interop_plan(equal_chunks(8, 4, 1, 12))
    assert plan.step_s == pytest.approx(pipeline_step_s(4, 12, 2.0, 4.0))


@pytest.mark.parametrize("virtual", [1, 2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks_per_device(virtual: int) -> None:
    plan = interop_plan(equal_chunks(16, 4, virtual, 8))
    busy_s = 8 * 16 / 4 * 3.0
    assert len(plan.stages) == 4 * virtual
    assert plan.step_s - busy_s == pytest.approx((4 - 1) * 4 * 3.0 / virtual)
    assert [stage.first_device for stage in plan.stages] == [0, 1, 2, 3] * virtual


def exhaustive_interleaved_s(problem: Interop) -> float:
    """The least step time over all ways to cut the layers into p v chunks on p equal sub-meshes in turn, and all variants that fit."""
    best, v = inf, problem.virtual
    for mesh in submeshes(problem.num_nodes, problem.devices_per_node):
        p = problem.num_devices // mesh.size
        if problem.num_devices % mesh.size or p < 2 or problem.micro_batches % p:
            continue
        flying = interleaved_in_flight(p, v, problem.micro_batches)
        leaves = [problem.num_nodes > 1 and (j + 1) % p * mesh.size % problem.devices_per_node == 0 for j in range(p * v)]
        for cuts in combinations(range(1, problem.num_layers), p * v - 1):
            chunks = list(pairwise((0, *cuts, problem.num_layers)))
            links_s = sum(problem.transfer_s(b - 1, mesh, mesh, leaves[j]) for j, (_, b) in enumerate(chunks[:-1]))
            menus = [
                [price for price in problem.price(a, b - 1, mesh) if held_bytes(price, flying[j], v) <= problem.memory_bytes]
                for j, (a, b) in enumerate(chunks)
            ]
            for variants in product(*menus):
                times = [price.forward_s + price.backward_s for price in variants]
                steady_s = (problem.micro_batches * v - 1) * max(times)
                best = min(best, (sum(times) + links_s) / v + steady_s + v * max(price.per_step_s for price in variants))
    return best


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_interleaved_plan_is_as_fast_as_the_best_of_all_chunkings(seed: int, nodes: int) -> None:
    problem = replace(
        random_problem(seed),
        num_layers=6,
        num_nodes=nodes,
        devices_per_node=2 if nodes == 1 else 1,
        micro_batches=4,
        same_size=True,
        virtual=2,
        memory_bytes=[30.0, 80.0, inf][seed % 3],
    )
    assert found_s(problem) == pytest.approx(exhaustive_interleaved_s(problem))


def test_interleaved_chunks_must_fit_with_what_is_in_flight() -> None:
    flying = max(interleaved_in_flight(4, 2, 8))
    assert found_s(equal_chunks(8, 4, 2, 8, 2.0 * flying)) < inf
    assert found_s(equal_chunks(8, 4, 2, 8, 2.0 * flying - 1)) == inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "0 layers"),
        ({"kinds": ["a"]}, "1 kinds for 4 layers"),
        ({"virtual": 2}, "ask for same_size"),
        ({"same_size": True, "rank_order": False}, "in rank order"),
    ],
)
def test_a_problem_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        replace(blocks(4, 1, 2, 2, 1e9), **change)  # type: ignore[arg-type]


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(Unsupported, match="no pipeline of 4 layers on 1 x 2 devices"):
        interop_plan(blocks(4, 1, 2, 2, 1.0))
