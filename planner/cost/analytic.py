"""Seconds of acts, collectives and transfers, from a cluster's description alone.

(1) act      = overhead + max(sum over dtypes of flop / rate, traffic / memory bandwidth)   roofline   -> AnalyticCost.act_s, op_s
             = overhead + max(kernels x host's launch, sum of the kernels' times), where the device has a kernel table   -> kernels_s
(2) boxing   = a collective along an axis                        planner.cost.collective_times -> axis_boxing_s, boxing_s
(3) transfer = the largest sender's bytes                        planner.cost.collective_times -> transfer_s
(4) loading  = overhead + bytes / rate of disk, host or copy engine, rates assumed                      -> loading_s
(5) save     = overhead + 2 state bytes / memory bandwidth: every byte is read and written once         -> AnalyticCost.act_s

(2) and (3) are NCCL's times where the cluster names its interconnect, else alpha + bytes / beta; all lines of an axis, or all senders of a
stage, communicate at once.  The search and the simulator call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.cost.collective_times import axis_s, hop_s, line_s
from planner.ir.cluster import Cluster, DeviceSpec
from planner.ir.collective import Collective
from planner.ir.errors import Mismatch
from planner.ir.graph import Fusion, KernelKind, KernelWork, Op
from planner.ir.plan import Boxing, Fragment, Plan, StreamKind, Task, TaskKind
from planner.ir.sbp import Split
from planner.ir.tensor import DType, TensorType
from planner.ir.text import content_id
from planner.opset import flop, traffic_bytes
from planner.opset.layers import BLOCK, BLOCK_BACKWARD

__all__ = [
    "AnalyticCost",
    "axis_boxing_s",
    "boxing_s",
    "compute_dtype",
    "counted_work_s",
    "full_rate",
    "kernels_s",
    "least_work_s",
    "loading_s",
    "op_s",
    "op_work_s",
    "transfer_s",
]

DISK_BYTES_PER_S = 2e9
"""Assumed, for loading actors: one NVMe drive is read sequentially.  The page cache is faster, network storage is slower."""
PREPARE_BYTES_PER_S = 1e9
"""Assumed, per byte written: one core casts and normalises.  Decoding images is ten times slower; measure it (regista calibrate)."""
COPY_BYTES_PER_S = 25e9
"""Assumed: pinned memory is copied over PCIe 4.0 x16, whose raw rate is 31.5e9 [PCI-SIG, PCI Express Base 4.0]."""

LAUNCH_S = {Fusion.EAGER: 5e-6, Fusion.FUSED: 5e-6, Fusion.COMPILED: 1e-6}
"""Assumed: what the host takes to launch a kernel from Python; a graph of kernels is launched by the device."""


def compute_dtype(op: Op, types: Mapping[str, TensorType]) -> DType | None:
    """The dtype in which an op computes: the floating type to which its operands are promoted; None for an op on integers alone.

    An op without floating operands that makes floating numbers (full, a cast) computes in those.
    """
    for values in (op.inputs[:1] if op.target in (BLOCK, BLOCK_BACKWARD) else op.inputs, op.outputs):
        dtypes = {_PARTS.get(types[v].dtype, types[v].dtype) for v in values if v is not None}
        floating = {dtype for dtype in dtypes if dtype.is_floating}
        if floating == {DType.FLOAT16, DType.BFLOAT16}:
            return DType.FLOAT32
        if floating:
            return max(floating, key=lambda dtype: dtype.size_bytes)
    return None


_PARTS = {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}
"""A complex number is computed in the dtype of its two parts."""


def op_s(cluster: Cluster, flop: float, traffic_bytes: float, dtype: DType | None = None) -> float:
    """Equation (1) without the overhead, which is paid per act and not per op.

    Args:
        dtype: the dtype in which the op computes (compute_dtype); None: the device's general rate is taken.
    """
    device = cluster.device
    return max(flop / device.rate_for(dtype), traffic_bytes / device.memory_bandwidth_bytes_per_s)


def full_rate(device: DeviceSpec, dtype: DType | None) -> float:
    """flop/s that count as full use of a device: the data sheet's peak where kernels are priced, elsewhere the sustained rate of its file."""
    if not device.kernels:
        return device.rate_for(dtype)
    from planner.cost.kernels import KernelModel, Precision  # numpy: not before it is needed

    peaks = KernelModel.for_device(device.kernels).device.peaks
    return peaks.get(Precision.FLOAT32 if dtype is None else Precision.of(dtype), peaks[Precision.FLOAT32])


def op_work_s(cluster: Cluster, op: Op, types: Mapping[str, TensorType]) -> float:
    """Seconds of one op by itself: its kernel's, where the device has a kernel table, otherwise op_s."""
    return counted_work_s(cluster, op, types, flop(op, types), traffic_bytes(op, types), compute_dtype(op, types))


def counted_work_s(cluster: Cluster, op: Op, types: Mapping[str, TensorType], op_flop: int, size_bytes: int, dtype: DType | None) -> float:
    """Seconds of one op by itself (``op_work_s``), for a caller who has its flop, its bytes and its dtype (compute_dtype)."""
    if not cluster.device.kernels:
        return op_s(cluster, op_flop, size_bytes, dtype)
    from planner.cost.kernels.launches import kernel_of

    work = kernel_of(op, types, dtype, op_flop, size_bytes)
    return 0.0 if work is None else kernels_s(cluster, (work,))


def least_work_s(cluster: Cluster, op: Op, types: Mapping[str, TensorType]) -> float:
    """Device-seconds that an op takes at least, however evenly it is cut: parts on n devices take no less than this divided by n.

    Without a kernel table that is op_s, in proportion to flop and bytes.  A kernel table gives a part of a product up to an eighth less than its
    share of the whole, since larger is not always quicker per flop; no part takes less than its flop at the device's peak.
    """
    device = cluster.device
    if not device.kernels:
        return op_work_s(cluster, op, types)
    from planner.cost.kernels import KernelModel  # numpy: not before it is needed
    from planner.cost.kernels.launches import op_kernel

    work = op_kernel(op, types, compute_dtype(op, types))
    if work is None:
        return 0.0
    if work.kind is KernelKind.PASS:  # in proportion to bytes, or to flop, and its launch
        return kernels_s(cluster, (work,))
    return work.times * KernelModel.for_device(device.kernels).least_part_s(work) * device.times_of(work.kind)


def kernels_s(cluster: Cluster, kernels: Sequence[KernelWork]) -> float:
    """Seconds of kernels on a device with a kernel table: the host launches them while the device works off what it was given before."""
    from planner.cost.kernels import KernelModel  # numpy: not before it is needed

    model, device = KernelModel.for_device(cluster.device.kernels), cluster.device
    device_s, launched = 0.0, 0
    for work in kernels:
        device_s += work.times * model.work_s(work) * device.times_of(work.kind)
        launched += work.times
    return max(device_s, LAUNCH_S[device.fusion] * launched)


def _fragment_s(cluster: Cluster, fragment: Fragment) -> float:
    """Equation (1) without the overhead.  Flop of a dtype for which the device states no rate, or of no dtype, take the general rate."""
    device = cluster.device
    if device.kernels and fragment.kernels:
        return kernels_s(cluster, fragment.kernels)
    if device.kernels and fragment.ops and fragment.flop:
        raise Mismatch(
            f"cluster {cluster.name} prices kernels (of {device.kernels}), but the plan's fragments of {len(fragment.ops)} ops list none: it was "
            f"planned for a device without a kernel table; plan it anew for this cluster"
        )
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
    return axis_s(cluster, mesh, axis, collective, total_bytes, bucketed)


def transfer_s(cluster: Cluster, src_ranks: Sequence[int], dst_ranks: Sequence[int], largest_bytes: float) -> float:
    """Equation (3): all ranks of a stage send to another stage at once; the largest sender sends ``largest_bytes``."""
    return hop_s(cluster, src_ranks, dst_ranks, largest_bytes)


def loading_s(plan: Plan, task: Task) -> float:
    """Equation (4) without the overhead, in seconds; 0 for a SOURCE that slices a batch in memory (on a stream of the host)."""
    placement = plan.placement[task.placement]
    written_bytes = sum(plan.regst[a.regst].tensors[a.index].local_bytes(placement) for a in task.writes)
    if task.kind is TaskKind.PREPARE:
        return written_bytes / PREPARE_BYTES_PER_S
    if task.kind is TaskKind.COPY:
        device = plan.cluster.device_of(placement.ranks[0])
        return 2 * written_bytes / device.memory_bandwidth_bytes_per_s if device.kind == "cpu" else written_bytes / COPY_BYTES_PER_S
    return written_bytes / DISK_BYTES_PER_S if plan.stream[task.stream].kind is StreamKind.DISK else 0.0


def boxing_s(cluster: Cluster, collective: Collective, total_bytes: float, ranks: tuple[int, ...], *, bucketed: bool = False) -> float:
    """Equation (2), for the ranks of one line of an axis.

    Args:
        total_bytes: of the tensor that the ranks hold together.
        bucketed: the tensor shares its collective with many others (gradients, parameters), so no latency is added for it.
    """
    if collective is Collective.LOCAL or len(ranks) == 1:
        return 0.0
    return line_s(cluster, ranks, collective, total_bytes, bucketed)


@dataclass(frozen=True)
class AnalyticCost:
    """The CostModel of a cluster that has not been measured, equations (1) to (5), each with the rates of the device group that performs the act."""

    cluster: Cluster

    @property
    def id(self) -> str:
        return f"analytic-{content_id(self.cluster)}"

    @property
    def alone_on_links(self) -> bool:
        """Lines of one axis, and senders of one stage, are priced together; different tasks between nodes are not."""
        return self.cluster.num_nodes > 1

    def message_s(self, src_rank: int, dst_rank: int) -> float:
        return 0.0

    def folded_s(self, plan: Plan) -> Callable[[Task], float]:
        """Seconds of one act of a task on its first rank: an act takes equally long on all ranks of a placement."""
        seconds_by_task: dict[str, float] = {}

        def first_rank_s(task: Task) -> float:
            if task.id not in seconds_by_task:
                seconds_by_task[task.id] = self.act_s(plan, task, plan.ranks_of(task)[0])
            return seconds_by_task[task.id]

        return first_rank_s

    def equal_on_ranks(self, plan: Plan, task: Task) -> bool:
        """Of every task but a collective on ranks that are not consecutive: there some lines of the mesh axis may cross nodes and others not."""
        return not isinstance(task.body, Boxing) or self._in_order(plan, task)

    def act_s(self, plan: Plan, task: Task, rank: int) -> float:
        own, _ = self.cluster.part_of_all(plan.ranks_of(task))
        overhead_s = own.device.act_overhead_s
        match task.body:
            case Fragment() as fragment:
                return overhead_s + _fragment_s(own, fragment)
            case Boxing():
                return self.boxing_act_s(plan, task, rank)
        if task.kind is TaskKind.TRANSFER:
            target = plan.regst[task.produces[0].regst]
            src_ranks, dst_ranks = plan.placement[task.placement].ranks, plan.placement[target.placement].ranks
            return overhead_s + transfer_s(self.cluster, src_ranks, dst_ranks, plan.block_bytes(target))
        if task.kind is TaskKind.SAVE:
            state_bytes = sum(plan.regst[a.regst].tensors[a.index].local_bytes(plan.placement[task.placement]) for a in task.reads)
            return overhead_s + 2 * state_bytes / own.device.memory_bandwidth_bytes_per_s
        return overhead_s + loading_s(plan, task) if task.kind.is_loading else overhead_s

    def boxing_act_s(self, plan: Plan, task: Task, rank: int, times: float = 1.0) -> float:
        """Seconds of one act of a boxing if it moved ``times`` its bytes."""
        assert isinstance(task.body, Boxing)
        own, own_first = self.cluster.part_of_all(plan.ranks_of(task))
        axis, collective = task.body.axis, task.body.collective
        total_bytes = times * sum(self._axis_bytes(plan, task, i) for i in range(len(task.reads)))
        placement = plan.placement[task.placement]
        if self._in_order(plan, task):
            return own.device.act_overhead_s + axis_boxing_s(own, placement.mesh, axis, collective, total_bytes)
        line = tuple(peer - own_first for peer in placement.axis_ranks(axis, rank))
        return own.device.act_overhead_s + boxing_s(own, collective, total_bytes, line)

    def _in_order(self, plan: Plan, task: Task) -> bool:
        """Whether the ranks of the task follow one another from a multiple of their number on, as lowering lays out stages."""
        ranks = plan.ranks_of(task)
        _, own_first = self.cluster.part_of_all(ranks)
        return (ranks[0] - own_first) % len(ranks) == 0 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))

    def _axis_bytes(self, plan: Plan, task: Task, index: int) -> int:
        """Bytes of the read tensor that the ranks of the boxing's axis hold together before it."""
        placement, read = plan.placement[task.placement], task.reads[index]
        assert isinstance(task.body, Boxing)
        local_bytes = plan.regst[read.regst].tensors[read.index].local_bytes(placement)
        return local_bytes * placement.mesh[task.body.axis] if isinstance(task.body.src[task.body.axis], Split) else local_bytes
