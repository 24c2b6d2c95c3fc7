"""A step as nodes of Chakra: they wait for what the token game waits for, and take as long as the simulation says."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from stories import TableCost, chain, data_parallel, pipeline

from planner.cost import AnalyticCost
from planner.ir.actors.actor import build_actors
from planner.ir.errors import Unsupported
from planner.ir.plan import Boxing, Plan, Task
from planner.ir.protocols import CostModel
from planner.ir.traces.trace import Act
from regista.chakra import ChakraTrace, Node, NodeKind, chakra_trace
from simulator import simulate

STORIES = {
    "chain": chain("abcd", 2, 4),
    "one block": chain("abc", 1, 3),
    "pipeline": pipeline(3, 4),
    "data parallel": data_parallel(4),
}
COST = TableCost({"F0": 0.5, "B1": 2.25}, latency_s=0.125)


def simulated(plan: Plan, cost: CostModel) -> list[Act]:
    """In the order of their ends; the engine is the one that tells of acts, so streams without an order choose alike."""
    acts: list[Act] = []
    simulate(plan, cost, steps=1, on_act=acts.append)
    return acts


def nodes_of_acts(plan: Plan, trace: ChakraTrace) -> dict[tuple[str, int, int], list[tuple[int, Node]]]:
    """(task, rank that performs it, act) -> its nodes as (rank, node): those of its rank, and the receives on others."""
    found: dict[tuple[str, int, int], list[tuple[int, Node]]] = defaultdict(list)
    for rank, nodes in trace.nodes.items():
        for node in nodes:
            task = plan.task[str(node.attributes["task"])]
            receives = node.kind is NodeKind.RECEIVE and not isinstance(task.body, Boxing)
            found[task.id, int(node.attributes["comm_src"]) if receives else rank, int(node.attributes["act"])].append((rank, node))
    return found


def assert_waits_as_the_game(plan: Plan, cost: CostModel, seed: int) -> None:
    """At every moment of a random game an act's nodes have nothing left to wait for exactly if it can fire and its stream has come to it."""
    rng, acts_of = random.Random(seed), nodes_of_acts(plan, chakra_trace(plan, cost))
    actors, _ = build_actors(plan, 1)
    before: dict[tuple[str, int, int], tuple[str, int, int]] = {}
    last: dict[tuple[str, int], tuple[str, int, int]] = {}
    for act in simulated(plan, cost):
        key, stream = (act.task, act.rank, act.number), (plan.task[act.task].stream, act.rank)
        if stream in last:
            before[key] = last[stream]
        last[stream] = key
    ended: set[tuple[int, int]] = set()
    done: set[tuple[str, int, int]] = set()
    while len(done) < len(acts_of):
        free = []
        for actor in actors.values():
            key = actor.task.id, actor.rank, actor.acts_begun
            if key not in acts_of:
                continue
            by_nodes = all((rank, dep) in ended for rank, node in acts_of[key] for dep in (*node.data_deps, *node.ctrl_deps))
            by_game = actor.can_fire() and (key not in before or before[key] in done)
            assert by_nodes == by_game, key
            if by_game:
                free.append((key, actor))
        key, actor = rng.choice(free)
        actor.begin()
        for message in actor.end():
            actors[message.receiver].receive(message)
        done.add(key)
        ended |= {(rank, node.id) for rank, node in acts_of[key]}


def played(plan: Plan, cost: CostModel, trace: ChakraTrace) -> dict[tuple[str, int, int], tuple[float, float]]:
    """Begin and end of every act by nodes alone: all that it waits for has ended, whoever meets starts together."""
    acts_of, ends, times = nodes_of_acts(plan, trace), dict[tuple[int, int], float](), dict[tuple[str, int, int], tuple[float, float]]()

    def known(task: Task, rank: int, number: int) -> float | None:
        """When the act can start; a block that another rank gives back is known of one message later."""
        latest = 0.0
        for at, node in acts_of[task.id, rank, number]:
            for dep in (*node.data_deps, *node.ctrl_deps):
                if (at, dep) not in ends:
                    return None
                latest = max(latest, ends[at, dep] + (cost.message_s(at, rank) if at != rank else 0.0))
        return latest

    waiting = list(acts_of)
    while waiting:
        left = []
        for key in waiting:
            task = plan.task[key[0]]
            starts = [known(task, rank, key[2]) for rank in plan.peers(task, key[1])]
            if None in starts:
                left.append(key)
                continue
            own = [node for rank, node in acts_of[key] if rank == key[1]]
            start_s = max(start for start in starts if start is not None)
            times[key] = start_s, start_s + max(node.duration_s for node in own)
        for key in set(waiting) - set(left):
            for rank, node in acts_of[key]:
                ends[rank, node.id] = times[key][1] + (node.duration_s if rank != key[1] else 0.0)
        assert len(left) < len(waiting), "a circle"
        waiting = left
    return times


def assert_takes_as_long_as_simulated(plan: Plan, cost: CostModel) -> None:
    times = played(plan, cost, chakra_trace(plan, cost))
    acts = simulated(plan, cost)
    assert len(times) == len(acts)
    for act in acts:
        assert times[act.task, act.rank, act.number] == pytest.approx((act.start_s, act.end_s), rel=1e-9, abs=1e-15), act


@pytest.mark.parametrize("name", STORIES)
def test_nodes_wait_for_what_the_token_game_waits_for(name: str) -> None:
    for seed in range(3):
        assert_waits_as_the_game(STORIES[name], COST, seed)


@pytest.mark.parametrize("name", STORIES)
def test_nodes_played_by_their_dependencies_take_as_long_as_the_simulated_step(name: str) -> None:
    assert_takes_as_long_as_simulated(STORIES[name], COST)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["mlp", "gpt", "moe", "llama3"])
def test_nodes_of_committed_plans_wait_and_last_as_the_game_and_the_simulation(model: str) -> None:
    from matrix import COMMITTED, read_plan

    ways = dict.fromkeys(way for m, way, _ in COMMITTED if m == model)
    assert len(ways) > 5
    for way in ways:
        plan = read_plan(model, way, next(dtype for m, w, dtype in COMMITTED if (m, w) == (model, way)))
        assert_waits_as_the_game(plan, AnalyticCost(plan.cluster), seed=0)
        assert_takes_as_long_as_simulated(plan, AnalyticCost(plan.cluster))


def test_no_node_comes_before_one_that_it_waits_for() -> None:
    for plan in STORIES.values():
        for nodes in chakra_trace(plan, COST).nodes.values():
            assert [node.id for node in nodes] == list(range(len(nodes)))
            assert all(dep < node.id for node in nodes for dep in (*node.data_deps, *node.ctrl_deps))
            assert not any(set(node.data_deps) & set(node.ctrl_deps) for node in nodes)


def test_a_collective_has_a_node_per_rank_with_its_group_and_what_one_rank_puts_in() -> None:
    trace = chakra_trace(data_parallel(4), COST)
    assert trace.groups == {"1": (0, 1, 2, 3)}
    for rank in range(4):
        (node,) = [node for node in trace.nodes[rank] if node.kind is NodeKind.COLLECTIVE]
        assert (node.name, node.attributes["comm_type"], node.attributes["pg_name"]) == ("all_reduce.0", 0, "1")
        assert node.attributes["comm_size"] == 1024


def test_every_send_has_one_receive_of_its_tag_and_bytes_on_the_other_rank() -> None:
    trace = chakra_trace(pipeline(3, 4), COST)
    ends: dict[NodeKind, list[tuple[object, ...]]] = {NodeKind.SEND: [], NodeKind.RECEIVE: []}
    for rank, nodes in trace.nodes.items():
        for node in nodes:
            if node.kind in ends:
                about = node.attributes
                assert about["comm_src" if node.kind is NodeKind.SEND else "comm_dst"] == rank
                ends[node.kind].append(tuple(about[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size")))
    assert len(set(ends[NodeKind.SEND])) == len(ends[NodeKind.SEND]) == 16
    assert sorted(ends[NodeKind.SEND]) == sorted(ends[NodeKind.RECEIVE])


def test_a_step_of_too_many_acts_is_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regista.chakra.step.MOST_ACTS", 10)
    with pytest.raises(Unsupported, match=r"is 16 acts on 1 ranks.*at most 10 are written: plan with fewer micro-batches or fewer devices"):
        chakra_trace(STORIES["chain"], COST)
