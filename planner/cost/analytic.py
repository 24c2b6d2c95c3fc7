"""Prices from a cluster description alone.

(1) act      = overhead + max(sum over dtypes of flop / rate, traffic / memory bandwidth)   roofline   -> AnalyticCost.act_s, op_s
(2) boxing   = alpha + sent bytes / beta, sent bytes from SEMANTICS 2                       alpha-beta -> axis_boxing_s, boxing_s
(3) transfer = alpha + largest sender's bytes / beta                                                   -> transfer_s
(4) loading  = overhead + bytes / rate of disk, host or copy engine, rates assumed                      -> loading_s
(5) save     = overhead + 2 state bytes / memory bandwidth: read and copied, as in a step that saves    -> AnalyticCost.act_s

alpha and beta are those of planner.cost.mesh_links: all lines of an axis, or all senders of a stage, are at work at once.  The search and
the simulator call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.cost.mesh_links import axis_link, hop_link, line_link
from planner.ir.cluster import Cluster, LinkSpec
from planner.ir.collective import Collective, sent_bytes
from planner.ir.graph import Op
from planner.ir.plan import Boxing, Fragment, Plan, StreamKind, Task, TaskKind
from planner.ir.sbp import Split
from planner.ir.tensor import DType, TensorType
from planner.ir.text import content_id

__all__ = ["AnalyticCost", "axis_boxing_s", "boxing_s", "compute_dtype", "loading_s", "op_s", "transfer_s"]

DISK_BYTES_PER_S = 2e9
"""Assumed, for files of a chain of loading actors: one NVMe drive read in order; files in the page cache come sooner, network storage later."""
PREPARE_BYTES_PER_S = 1e9
"""Assumed: one core that casts and normalises, per byte written.  Decoding images is ten times slower; measure it (regista calibrate)."""
COPY_BYTES_PER_S = 25e9
"""Assumed: pinned memory over PCIe 4.0 x16, whose wires carry 31.5e9 [PCI-SIG, PCI Express Base 4.0]."""


def compute_dtype(op: Op, types: Mapping[str, TensorType]) -> DType | None:
    """The dtype in which an op computes: the floating type to which its operands are promoted; None for an op on integers alone.

    An op without floating operands that makes floating numbers (full, a cast) computes in those.
    """
    for values in (op.inputs, op.outputs):
        found = {_PARTS.get(types[v].dtype, types[v].dtype) for v in values if v is not None}
        found = {dtype for dtype in found if dtype.is_floating}
        if found == {DType.FLOAT16, DType.BFLOAT16}:
            return DType.FLOAT32
        if found:
            return max(found, key=lambda dtype: dtype.size_bytes)
    return None


_PARTS = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}
"""A complex number is computed in the dtype of its two parts."""


def op_s(cluster: Cluster, flop: float, traffic_bytes: float, dtype: DType | None = None) -> float:
    """Equation (1) without the overhead, which is paid per act and not per op.

    Args:
        dtype: what the op computes in (compute_dtype); None: at the device's general rate.
    """
    device = cluster.device
    return max(flop / device.rate_for(dtype), traffic_bytes / device.memory_bandwidth_bytes_per_s)


def _fragment_s(cluster: Cluster, fragment: Fragment) -> float:
    """Equation (1) without the overhead; flop of a dtype without a rate of its own, or of no dtype, are at the general rate."""
    device = cluster.device
    general_flop, compute_s = fragment.flop, 0.0
    for rate in device.rates:
        flop = sum(part.flop for part in fragment.flop_by_dtype if part.dtype is rate.dtype)
        general_flop -= flop
        compute_s += flop / rate.flop_per_s
    return max(compute_s + general_flop / device.rate_flop_per_s, fragment.traffic_bytes / device.memory_bandwidth_bytes_per_s)


def axis_boxing_s(
    cluster: Cluster, mesh: tuple[int, ...], axis: int, collective: Collective, total_bytes: float, *, bucketed: bool = False
) -> float:
    """Equation (2) along one mesh axis; arguments as in boxing_s."""
    if collective is Collective.LOCAL or mesh[axis] == 1:
        return 0.0
    return _priced_s(axis_link(cluster, mesh, axis, collective), sent_bytes(collective, total_bytes, mesh[axis]), bucketed)


def transfer_s(cluster: Cluster, src_ranks: Sequence[int], dst_ranks: Sequence[int], largest_bytes: float) -> float:
    """Equation (3): all ranks of a stage send to another stage, the one with most to send ``largest_bytes``."""
    return hop_link(cluster, src_ranks, dst_ranks).time_s(largest_bytes)


def loading_s(plan: Plan, task: Task) -> float:
    """Equation (4) without the overhead, in seconds; 0 for a SOURCE that slices a batch in memory (on a stream of the host)."""
    placement = plan.placement[task.placement]
    written = sum(plan.regst[a.regst].tensors[a.index].local_bytes(placement) for a in task.writes)
    if task.kind is TaskKind.PREPARE:
        return written / PREPARE_BYTES_PER_S
    if task.kind is TaskKind.COPY:
        device = plan.cluster.device
        return 2 * written / device.memory_bandwidth_bytes_per_s if device.kind == "cpu" else written / COPY_BYTES_PER_S
    return written / DISK_BYTES_PER_S if plan.stream[task.stream].kind is StreamKind.DISK else 0.0


def _priced_s(link: LinkSpec, sent: float, bucketed: bool) -> float:
    return sent / link.bandwidth_bytes_per_s if bucketed else link.time_s(sent)


def boxing_s(cluster: Cluster, collective: Collective, total_bytes: float, ranks: tuple[int, ...], *, bucketed: bool = False) -> float:
    """Equation (2): ``total_bytes`` is what the ranks of one line of an axis hold together.

    bucketed: the tensor shares its collective with many others (gradients, parameters), so the latency is not its own.
    """
    if collective is Collective.LOCAL or len(ranks) == 1:
        return 0.0
    return _priced_s(line_link(cluster, ranks, collective), sent_bytes(collective, total_bytes, len(ranks)), bucketed)


@dataclass(frozen=True)
class AnalyticCost:
    """The CostModel of a cluster nobody has measured yet."""

    cluster: Cluster

    @property
    def id(self) -> str:
        return f"analytic-{content_id(self.cluster)}"

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0

    def folded_s(self, plan: Plan) -> Callable[[Task], float]:
        """Seconds of a task's act on its first rank: all ranks of a placement behave alike."""
        known: dict[str, float] = {}

        def price_s(task: Task) -> float:
            if task.id not in known:
                known[task.id] = self.act_s(plan, task, plan.ranks_of(task)[0])
            return known[task.id]

        return price_s

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        overhead_s = self.cluster.device.act_overhead_s
        match task.body:
            case Fragment() as fragment:
                return overhead_s + _fragment_s(self.cluster, fragment)
            case Boxing(axis=axis, collective=collective):
                total_bytes = sum(self._axis_bytes(plan, task, i) for i in range(len(task.reads)))
                placement = plan.placement[task.placement]
                first, size = placement.ranks[0], len(placement.ranks)
                if first % size == 0 and placement.ranks == tuple(range(first, first + size)):  # as lowering lays out stages
                    return overhead_s + axis_boxing_s(self.cluster, placement.mesh, axis, collective, total_bytes)
                return overhead_s + boxing_s(self.cluster, collective, total_bytes, placement.axis_ranks(axis, rank))
        if task.kind is TaskKind.TRANSFER:
            target = plan.regst[task.produces[0].regst]
            src_ranks, dst_ranks = plan.placement[task.placement].ranks, plan.placement[target.placement].ranks
            return overhead_s + transfer_s(self.cluster, src_ranks, dst_ranks, plan.block_bytes(target))
        if task.kind is TaskKind.SAVE:
            held_bytes = sum(plan.regst[a.regst].tensors[a.index].local_bytes(plan.placement[task.placement]) for a in task.reads)
            return overhead_s + 2 * held_bytes / self.cluster.device.memory_bandwidth_bytes_per_s
        return overhead_s + loading_s(plan, task) if task.kind.is_loading else overhead_s

    def _axis_bytes(self, plan: Plan, task: Task, index: int) -> int:
        """Bytes of the tensor that the axis' ranks hold together before."""
        placement, read = plan.placement[task.placement], task.reads[index]
        assert isinstance(task.body, Boxing)
        local_bytes = plan.regst[read.regst].tensors[read.index].local_bytes(placement)
        return local_bytes * placement.mesh[task.body.axis] if isinstance(task.body.src[task.body.axis], Split) else local_bytes
