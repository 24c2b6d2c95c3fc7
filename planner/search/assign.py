"""SBP for every op and state tensor of a staged graph, axis after axis (SEMANTICS 1.5: ND signatures are products of 1-D ones).

Each axis is solved exactly by ``axis_ilp`` given the axes before it; on one axis the answer is therefore optimal for the cost model, on
several it is optimal step by step.  What no rule limits is free: batch inputs and constants may be delivered in any layout at no cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost.analytic import boxing_s, op_s
from planner.ir.cluster import Cluster
from planner.ir.collective import Collective, collective_for
from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind, LogicalGraph, Op, Role
from planner.ir.sbp import B, NdSbp, Partial, Sbp, Split
from planner.ir.tensor import TensorType
from planner.opset import Signature, flop, local_types, localize, signatures, traffic_bytes
from planner.search.axis_ilp import AxisProblem, Node, Use, solve_axis
from planner.search.pins import Pin, pinned_inputs, pinned_outputs
from planner.stages import Staged

__all__ = ["Assignment", "LocalOp", "assign"]


@dataclass(frozen=True, slots=True)
class LocalOp:
    """An op as one rank performs it: literals and types are local, layouts per operand occurrence and per output."""

    op: Op
    types: Mapping[str, TensorType]
    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp | None, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """ops: op id -> local op;  states: state input value -> its stored layout;  pinned: batch and constant values with a fixed layout."""

    ops: Mapping[str, LocalOp]
    states: Mapping[str, NdSbp]
    pinned: Mapping[str, NdSbp]
    method: str
    objective_s: float
    lower_bound_s: float


_LOSS = "<loss>"
_TIE_S = 1e-8


def assign(staged: Staged, mesh: tuple[int, ...], cluster: Cluster, pins: Sequence[Pin], micro_batches: int) -> Assignment:
    """Choose the layouts.

    Args:
        mesh: devices per axis inside each stage.
        micro_batches: how often per step the micro-batch part acts.

    Raises:
        UnknownOp: an op has no rule.   Unsupported: pins that cannot hold.
    """
    graph = staged.graph
    pinned = pinned_inputs(graph, pins, mesh)
    outputs = pinned_outputs(graph, pins, mesh)
    updated = [i for i in graph.inputs if i.value in graph.updates]
    local = {op.id: LocalOp(op, _types_of(graph, op), (), ()) for op in graph.ops}
    states: dict[str, tuple[Sbp, ...]] = {i.value: () for i in updated}
    objective_s = lower_bound_s = 0.0
    for axis, parts in enumerate(mesh):
        builder = _Axis(staged, cluster, micro_batches, mesh, axis, local, states, pinned, outputs)
        solution = solve_axis(builder.problem())
        objective_s, lower_bound_s = solution.objective_s, solution.lower_bound_s
        for op in graph.ops:
            local[op.id] = _extend(local[op.id], builder.signatures[op.id][solution.choice[op.id]], parts)
        for value, entries in states.items():
            states[value] = (*entries, builder.state_choices[value][solution.choice[f"state {value}"]])
    return Assignment(
        ops=local,
        states={value: NdSbp(entries) for value, entries in states.items()},
        pinned={v: sbp for v, sbp in pinned.items() if v not in states},
        method="ilp" if sum(parts > 1 for parts in mesh) <= 1 else "ilp, axis after axis",
        objective_s=objective_s,
        lower_bound_s=lower_bound_s if sum(parts > 1 for parts in mesh) <= 1 else 0.0,
    )


def _types_of(graph: LogicalGraph, op: Op) -> dict[str, TensorType]:
    return {value: graph.values[value] for value in (*op.inputs, *(o for o in op.outputs if o))}


def _extend(local: LocalOp, signature: Signature, parts: int) -> LocalOp:
    types = dict(local.types)
    for value, sbp in zip(local.op.inputs, signature.inputs, strict=True):
        types[value] = _cut(local.types[value], sbp, parts)
    types |= local_types(local.op, signature, local.types, parts)
    before_in = local.inputs or (NdSbp(()),) * len(signature.inputs)
    before_out = local.outputs or (NdSbp(()),) * len(signature.outputs)
    return LocalOp(
        localize(local.op, signature, local.types, parts),
        types,
        tuple(NdSbp((*b.entries, s)) for b, s in zip(before_in, signature.inputs, strict=True)),
        tuple(NdSbp((*(b.entries if b else ()), s if s is not None else B)) for b, s in zip(before_out, signature.outputs, strict=True)),
    )


def _cut(tensor: TensorType, sbp: Sbp, parts: int) -> TensorType:
    if not isinstance(sbp, Split):
        return tensor
    shape = list(tensor.shape)
    shape[sbp.dim] //= parts
    return tensor.with_shape(tuple(shape))


class _Axis:
    """Builds the ILP of one axis."""

    def __init__(
        self,
        staged: Staged,
        cluster: Cluster,
        micro_batches: int,
        mesh: tuple[int, ...],
        axis: int,
        local: Mapping[str, LocalOp],
        states: Mapping[str, tuple[Sbp, ...]],
        pinned: Mapping[str, NdSbp],
        outputs: Mapping[str, NdSbp],
    ) -> None:
        self.staged, self.graph, self.cluster, self.m = staged, staged.graph, cluster, micro_batches
        self.mesh, self.axis, self.parts, self.local, self.states, self.pinned = mesh, axis, mesh[axis], local, states, pinned
        stride = 1
        for extent in mesh[axis + 1 :]:
            stride *= extent
        self.ranks = tuple(i * stride for i in range(self.parts))  # one line of devices along the axis; all lines are alike
        size = stride * self.parts
        for extent in mesh[:axis]:
            size *= extent
        self.hop = (0, min(size, cluster.num_devices - 1))  # from a stage to the next
        self.signatures = {op_id: self._legal(lo, outputs) for op_id, lo in local.items()}
        self.state_choices = {value: self._state_choices(value) for value in states}

    def _legal(self, local: LocalOp, outputs: Mapping[str, NdSbp]) -> tuple[Signature, ...]:
        """The op's signatures, those that give a pinned output its layout."""
        legal = signatures(local.op, local.types, self.parts)
        pins = [(place, outputs[value]) for place, value in enumerate(local.op.outputs) if value is not None and value in outputs]
        kept = tuple(s for s in legal if all(self.parts == 1 or s.outputs[place] == sbp[self.axis] for place, sbp in pins))
        if not kept:
            ways = ", ".join(dict.fromkeys(str(s.outputs[pins[0][0]]) for s in legal))
            raise Unsupported(f"{local.op.where()} cannot return {pins[0][1]} on mesh axis {self.axis}; its rule allows {ways}")
        return kept

    def problem(self) -> AxisProblem:
        nodes = [Node(op.id, tuple(self._op_price_s(op, s) for s in self.signatures[op.id])) for op in self.graph.ops]
        # Where it costs the same, parameters are gathered once, after the update, in one bucket.
        nodes += [Node(f"state {v}", tuple(_TIE_S * (c != B) for c in choices)) for v, choices in self.state_choices.items()]
        nodes += [Node(f"pinned {value}", (0.0,)) for value in self.pinned if value not in self.states]
        nodes.append(Node(_LOSS, (0.0,)))
        return AxisProblem(tuple(nodes), tuple(self._uses()))

    def _state_choices(self, value: str) -> tuple[Sbp, ...]:
        if value in self.pinned:
            return (self.pinned[value][self.axis],)
        if self.parts == 1:
            return (B,)
        tensor = self._state_type(value)
        return (B, *(Split(d) for d, extent in enumerate(tensor.shape) if extent % self.parts == 0 and extent >= self.parts))

    def _state_type(self, value: str) -> TensorType:
        tensor = self.graph.values[value]
        for parts, sbp in zip(self.mesh, self.states[value], strict=False):
            tensor = _cut(tensor, sbp, parts)
        return tensor

    def _op_price_s(self, op: Op, signature: Signature) -> float:
        if op.role is Role.ACCUMULATE:
            return 0.0  # done while the gradient is written; no reason to reduce it before, once per micro-batch
        cut = _extend(self.local[op.id], signature, self.parts)
        count = self.m if op.role.per_micro_batch else 1
        return count * op_s(self.cluster, flop(cut.op, cut.types), traffic_bytes(cut.op, cut.types))

    def _uses(self) -> list[Use]:
        graph, stage = self.graph, self.staged.stage
        producers = graph.producers()
        uses: list[Use] = []
        for op in graph.ops:
            for value in dict.fromkeys(op.inputs):
                place = op.inputs.index(value)
                needs = tuple(signature.inputs[place] for signature in self.signatures[op.id])
                use = self._use(value, op.id, stage[op.id], needs, self._consumer_bytes(op, value), producers)
                if use is not None:
                    uses.append(use)
        for old, new in graph.updates.items():
            use = self._use(
                new, f"state {old}", self.staged.home(old), self.state_choices[old], self._state_type(old).size_bytes, producers
            )
            if use is not None:
                uses.append(use)
        loss_stage = stage[producers[graph.mean_loss].id]
        use = self._use(graph.mean_loss, _LOSS, loss_stage, (B,), graph.values[graph.mean_loss].size_bytes, producers)
        assert use is not None
        return [*uses, use]

    def _consumer_bytes(self, op: Op, value: str) -> int:
        return self.local[op.id].types[value].size_bytes

    def _use(
        self, value: str, consumer: str, consumer_stage: int, needs: tuple[Sbp, ...], needed_bytes: int, producers: Mapping[str, Op]
    ) -> Use | None:
        bucketed = value in self.states
        if value in producers:
            op = producers[value]
            bucketed = op.role in (Role.ACCUMULATE, Role.UPDATE)  # and nothing in the step waits for the mean loss
            place = op.outputs.index(value)
            leaves = tuple(_sbp(s.outputs[place]) for s in self.signatures[op.id])
            node, stage, have_bytes = op.id, self.staged.stage[op.id], self.local[op.id].types[value].size_bytes
            count = self.m if op.role in (Role.FORWARD, Role.BACKWARD) else 1
        elif value in self.states:
            leaves, node, stage = self.state_choices[value], f"state {value}", self.staged.home(value)
            have_bytes = self._state_type(value).size_bytes
            kind = next(i.kind for i in self.graph.inputs if i.value == value)
            count = self.m if kind is InputKind.BUFFER else 1
        elif value in self.pinned:
            leaves, node, stage = (self.pinned[value][self.axis],), f"pinned {value}", consumer_stage
            have_bytes, count = self.graph.values[value].size_bytes, self.m
        else:
            return None
        total_bytes = min(have_bytes, needed_bytes)
        price_s = {}
        for p in dict.fromkeys(leaves):
            for c in dict.fromkeys(needs):
                seconds = self._boxing_price_s(p, c, total_bytes, stage != consumer_stage, bucketed)
                if seconds is not None:
                    price_s[p, c] = count * seconds
        return Use(node, consumer, f"{value}->{consumer_stage}", leaves, needs, price_s)

    def _boxing_price_s(self, p: Sbp, c: Sbp, total_bytes: int, crosses: bool, bucketed: bool) -> float | None:
        if isinstance(p, Partial) and isinstance(c, Partial) and p != c:
            return None
        if not crosses:
            return self._collective_s(p, c, total_bytes, bucketed) if p != c else 0.0
        # Partial values are reduced before they travel; then each receiver is sent its own part.
        landing: Sbp = c if not isinstance(c, Partial) else B
        reduce_s = self._collective_s(p, landing, total_bytes, bucketed) if isinstance(p, Partial) else 0.0
        sent = total_bytes / self.parts if isinstance(landing, Split) else total_bytes
        return reduce_s + self.cluster.link_between(self.hop).time_s(sent)

    def _collective_s(self, p: Sbp, c: Sbp, total_bytes: int, bucketed: bool) -> float:
        """A collective ends one act and begins another, so it costs their overhead as well."""
        collective = collective_for(p, c)
        own_s = 0.0 if bucketed or collective is Collective.LOCAL else 2 * self.cluster.device.act_overhead_s
        return own_s + boxing_s(self.cluster, collective, total_bytes, self.ranks, bucketed=bucketed)


def _sbp(entry: Sbp | None) -> Sbp:
    return entry if entry is not None else B
