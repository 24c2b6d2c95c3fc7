"""A measured cost table: seconds per act of the tasks of a Plan, as profiled on a machine.

The key of an entry is what the act does (its kind, its ops, the local tensors it reads and writes, its mesh), not the name of its task.
So a table also serves another Plan that consists of the same acts, with other quotas, another schedule or another number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.ir.errors import InvalidFile, Mismatch
from planner.ir.plan import Access, Plan, Task
from planner.ir.text import canonical, content_id, decode, encode, load_json, save_text

__all__ = ["ActPrice", "Beside", "MeasuredCost", "act_key", "load_cost", "save_cost"]

VERSION = 1


MOST_S = 1e9
"""Thirty years; sums of such times still fit into a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActPrice:
    """Seconds of one act over ``samples`` repeats on ``ranks`` ranks; ``price_s`` is what the simulator charges.

    task: the name under which it was measured, for readers.
    """

    task: str
    price_s: float
    min_s: float
    p10_s: float
    median_s: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Memory of a rank's process without the Plan's device bytes, the blocks of other ranks and the buffers of collectives.

    The names of the class and of its fields stand in saved tables.

    kept_bytes: measured while acts were performed one by one, not in training; below 0 where kernels kept less than the Plan counts.
    batch_bytes: of the batches' file, per step of a run.
    """

    kept_bytes: int
    batch_bytes: int


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """The CostModel of a measured machine, for every Plan whose acts are in the table.

    acts: act key -> price.  message_latency_s: from the end of an act to the reaction of another rank.
    act_overhead_s: what the runtime adds between two acts of a stream.
    compute_slowdown: how many times as long an act computes while its rank communicates; prices are of acts that ran alone.
    beside: rank -> memory of its process that the Plan does not count; empty where it was not measured.
    """

    plan_id: str
    acts: Mapping[str, ActPrice]
    message_latency_s: float
    act_overhead_s: float
    about: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Beside] = field(default_factory=dict)
    compute_slowdown: float = 1.0

    @property
    def id(self) -> str:
        return f"measured-{content_id(self)}"

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return self.message_latency_s

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        """Raises Mismatch when the table has no entry for what this task does."""
        price = self.acts.get(_keys(plan)[task.id])
        if price is None:
            raise Mismatch(
                f"the cost table (measured for plan {self.plan_id}) has no price for task {task.id} of plan {plan.plan_id}; "
                f"measure this plan with 'regista calibrate PLAN -o COST'"
            )
        return price.price_s + self.act_overhead_s


def _keys(plan: Plan) -> Mapping[str, str]:
    """Task id -> act key, computed once per Plan (stored on the Plan, which never changes)."""
    key_of = plan.__dict__.get("_act_keys")
    if key_of is None:
        key_of = {task.id: act_key(plan, task) for task in plan.tasks}
        plan.__dict__["_act_keys"] = key_of
    return key_of


def act_key(plan: Plan, task: Task) -> str:
    """Content id of what one act of the task does."""
    placement = plan.placement[task.placement]

    def tensors(accesses: Sequence[Access]) -> list[object]:
        described: list[object] = []
        for access in accesses:
            regst = plan.regst[access.regst]
            tensor = regst.tensors[access.index]
            local = tensor.local_type(plan.placement[regst.placement], plan.placement[regst.placement].ranks[0])
            described.append([access.name, list(local.shape), local.dtype.value])
        return described

    accumulates = [port.acts_per_block > 1 for port in task.produces]
    return content_id([task.kind.value, encode(task.body), list(placement.mesh), tensors(task.reads), tensors(task.writes), accumulates])


def save_cost(cost: MeasuredCost, path: str) -> None:
    save_text(path, canonical({"kind": "cost", "version": VERSION, "cost": encode(cost)}) + "\n")


def load_cost(path: str) -> MeasuredCost:
    """Raises InvalidFile when the file is missing, truncated, of another schema, or has times that nobody measured."""
    data = load_json(path, "cost", VERSION).get("cost")
    if isinstance(data, dict):
        data = {"beside": {}, "compute_slowdown": 1.0} | data  # tables from before 2026-11-22 have neither field
    cost = decode(MeasuredCost, data, "cost")
    assert isinstance(cost, MeasuredCost)
    times_s = [cost.message_latency_s, cost.act_overhead_s, *(price.price_s for price in cost.acts.values())]
    if max(times_s) > MOST_S or cost.compute_slowdown > MOST_S:
        raise InvalidFile(
            f"{path}: an act or a message of {max(*times_s, cost.compute_slowdown):g} s; no measured time is above {MOST_S:g} s"
        )
    return cost
