"""Boxing between ranks: P -> B all-reduce, P -> S reduce-scatter, S -> B all-gather, S(i) -> S(j) all-to-all (SEMANTICS 2).

Two versions of the same meaning.  ``exchange`` works on the list of all parts in one process and *is* the meaning; ``GroupExchange`` runs
on one rank of a torch.distributed group and moves all tensors of a task in one call per dtype (a bucket).

gloo's reduce-scatter is an all-reduce followed by a cut; all-to-all plus a local sum moves half the bytes and took half the time
[measured: 2 ranks, 64 MB, 25.8 against 68.8 ms, 2026-11-21 on 2 cores].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate as running_sum

import torch
import torch.distributed as dist
from torch import Tensor

from backend.arena import ALIGNMENT_BYTES
from backend.boxing import local_step
from backend.sharding import cut, glue, reduce_parts
from planner.ir.collective import Collective, collective_for
from planner.ir.errors import InvalidPlan, Unsupported
from planner.ir.plan import Boxing, PlacedTensor, Plan, Task
from planner.ir.sbp import Broadcast, Partial, ReduceOp, Sbp, Split, part_of

__all__ = ["GroupExchange", "Scratch", "alike", "check_boxing", "crew_of", "exchange", "local_extents", "scratch_bytes", "scratches"]

_REDUCE = {ReduceOp.SUM: dist.ReduceOp.SUM, ReduceOp.MIN: dist.ReduceOp.MIN, ReduceOp.MAX: dist.ReduceOp.MAX}


def exchange(src: Sbp, dst: Sbp, parts: Sequence[Tensor]) -> list[Tensor]:
    """One boxing step along one axis, all parts at hand.

    Args:
        parts: what each position of the axis holds, in axis order.

    Returns:
        what each position holds afterwards; the inputs are not written to.

    Raises:
        Unsupported: between two different partial reductions.
    """
    collective_for(src, dst)
    if src == dst:
        return list(parts)
    whole = glue(src, parts)
    return [cut(dst, whole, len(parts), index) for index in range(len(parts))]


def check_boxing(task: Task, body: Boxing) -> None:
    """Refuse a step whose parts would not be contiguous pieces.

    Raises:
        Unsupported: a later axis cuts the dim that this step splits or joins; the outer axis of such a pair moves last.
        InvalidPlan: src and dst differ on another axis than the one of the step, or the collective is another one.
    """
    axis = body.axis
    if body.src.replace(axis, body.dst[axis]) != body.dst:
        raise InvalidPlan(f"task {task.id}: boxing {body.src} -> {body.dst} changes more than axis {axis}; one step changes one axis")
    if collective_for(body.src[axis], body.dst[axis]) is not body.collective:
        raise InvalidPlan(f"task {task.id}: {body.src[axis]} -> {body.dst[axis]} is not {body.collective.value}")
    for entry in (body.src[axis], body.dst[axis]):
        if isinstance(entry, Split) and body.src != body.dst and entry in body.src.entries[axis + 1 :]:
            raise Unsupported(f"task {task.id}: boxing {body.src} -> {body.dst} on axis {axis}, but a later axis cuts dim {entry.dim} too")


def local_extents(tensor: PlacedTensor, mesh: Sequence[int], coordinate: Sequence[int], axis: int) -> tuple[int, ...]:
    """Shape that the ranks of an axis group hold together: the local shape with this axis left uncut."""
    return tensor.sbp.replace(axis, Broadcast()).local_shape(tensor.shape, mesh, coordinate)


def crew_of(plan: Plan, task: Task, rank: int) -> tuple[int, ...]:
    """The ranks that meet in an act of ``task`` (SEMANTICS 3.10), in axis order; the rank alone where nobody needs to meet."""
    if isinstance(task.body, Boxing) and task.body.collective is not Collective.LOCAL:
        return plan.placement[task.placement].axis_ranks(task.body.axis, rank)
    return (rank,)


class Scratch:
    """What exchanges send and receive on the way, in memory that all of one stream use again: acts of a stream never overlap.

    Taken anew in every act, such buckets grew the heap by their size now and then, 24 MiB each [measured 2026-11-21].  The Plan does not
    count it; see scratch_bytes.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    @property
    def held_bytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """Take the memory for the largest act of every use now."""
        for use, size_bytes in sizes.items():
            if size_bytes:
                self.take(use, torch.empty(0, dtype=torch.uint8), size_bytes)

    def take(self, use: str, like: Tensor, numel: int) -> Tensor:
        """A flat tensor of ``like``'s dtype, until the next one is taken for the same use; its values are anybody's."""
        size_bytes = numel * like.element_size()
        held = self._held.get(use)
        if held is None or held.numel() < size_bytes:
            self._held.pop(use, None)
            held = self._held[use] = torch.empty(size_bytes, dtype=torch.uint8, device=like.device)
        return held[:size_bytes].view(like.dtype)

    def flat(self, values: Sequence[Tensor]) -> Tensor:
        """The values one behind the other; a single one that lies so is not copied."""
        if len(values) == 1:
            return values[0].reshape(-1)
        return torch.cat([v.reshape(-1) for v in values], out=self.take("sent", values[0], sum(v.numel() for v in values)))


class GroupExchange:
    """One BOXING task on one rank: shapes and bucket offsets worked out once, then ``run`` per act.

    Args:
        group: the torch.distributed group of the ranks along the axis, in axis order; None when the axis has one rank or the step is local.
        scratch: of the task's stream on this rank; None: of its own.
    """

    def __init__(self, plan: Plan, task: Task, rank: int, group: dist.ProcessGroup | None, scratch: Scratch | None = None) -> None:
        self._scratch = scratch if scratch is not None else Scratch()
        assert isinstance(task.body, Boxing)
        check_boxing(task, task.body)
        placement = plan.placement[task.placement]
        self._group = group
        self._axis = task.body.axis
        self._src, self._dst = task.body.src[self._axis], task.body.dst[self._axis]
        self._collective = task.body.collective
        self._parts = placement.mesh[self._axis]
        coordinate = placement.coordinate(rank)
        self._index = coordinate[self._axis]
        # Extents before this axis cuts; from them every rank knows every neighbour's shapes.
        placed = [plan.regst[access.regst].tensors[access.index] for access in task.reads]
        self._extents = [local_extents(tensor, placement.mesh, coordinate, self._axis) for tensor in placed]
        self._packed: dict[tuple[int, int], Tensor | None] = {}
        self._pairs: dict[tuple[int, int, int], tuple[Tensor, Tensor] | None] = {}
        self._buckets: dict[str, list[int]] = {}
        for position, tensor in enumerate(placed):
            self._buckets.setdefault(tensor.dtype.value, []).append(position)

    def needs(self) -> Mapping[str, int]:
        """Bytes of scratch that an act takes, by use."""
        found = {"sent": 0, "received": 0}
        if self._collective is Collective.LOCAL or self._parts == 1:
            return found
        for dtype, bucket in self._buckets.items():
            sent, received = self._needs([self._extents[p] for p in bucket])
            size = getattr(torch, dtype).itemsize
            found = {"sent": max(found["sent"], sent * size), "received": max(found["received"], received * size)}
        return found

    def _needs(self, extents: list[tuple[int, ...]]) -> tuple[int, int]:
        """Elements of a bucket that are sent and received by way of scratch."""

        def part(extent: tuple[int, ...], dim: int, index: int) -> tuple[int, ...]:
            return _with(extent, dim, part_of(extent[dim], self._parts, index)[1])

        alone, here = len(extents) == 1, self._index
        match self._src, self._dst:
            case Partial(), Split(dim):
                sent = 0 if alone and dim == 0 else sum(map(_numel, extents))
                return sent, self._parts * sum(_numel(part(e, dim, here)) for e in extents)
            case Split(dim), Broadcast():
                widths = [sum(_numel(part(e, dim, r)) for e in extents) for r in range(self._parts)]
                straight = alone and dim == 0 and min(widths) == max(widths)
                return 0 if alone else widths[here], 0 if straight else self._parts * max(widths)
            case Split(src_dim), Split(dst_dim):
                mine = [part(e, src_dim, here) for e in extents]
                sent = 0 if alone and dst_dim == 0 else sum(map(_numel, mine))
                return sent, sum(_numel(part(part(e, dst_dim, here), src_dim, r)) for e in extents for r in range(self._parts))
            case _:
                return 0, 0

    def run(self, values: Sequence[Tensor], slots: Sequence[Tensor] = ()) -> list[Tensor]:
        """Exchange with the neighbours; every rank of the group must call it for the same act.

        Args:
            slots: where results may be left (one per value, or none at all); what lies elsewhere is the caller's to copy.

        Raises:
            RuntimeError: a neighbour died or did not come within the group's timeout (gloo).
        """
        results: list[Tensor | None] = [None] * len(values)
        for bucket in self._buckets.values():
            places = [slots[p] for p in bucket] if slots else []
            for position, result in zip(bucket, self._exchange([values[p] for p in bucket], bucket, places), strict=True):
                results[position] = result
        return [result for result in results if result is not None]

    def _exchange(self, values: list[Tensor], bucket: list[int], slots: list[Tensor]) -> list[Tensor]:
        extents = [self._extents[p] for p in bucket]
        if self._collective is Collective.LOCAL:
            return [self._local(value, extent) for value, extent in zip(values, extents, strict=True)]
        if self._group is None:
            assert self._parts == 1
            return [exchange(self._src, self._dst, [value])[0] for value in values]
        match self._src, self._dst:
            case Partial(op), Broadcast():
                return self._all_reduce(values, op, slots)
            case Partial(op), Split(dim):
                return self._reduce_scatter(values, extents, op, dim, slots)
            case Split(dim), Broadcast():
                return self._all_gather(values, extents, dim, slots)
            case Split(src_dim), Split(dst_dim):
                return self._all_to_all(values, extents, src_dim, dst_dim, slots)
            case _:
                raise Unsupported(f"boxing {self._src} -> {self._dst} is no collective")

    def _local(self, value: Tensor, extents: tuple[int, ...]) -> Tensor:
        extent = extents[self._src.dim] if isinstance(self._src, Split) else None
        return local_step(self._src, self._dst, self._parts, self._index, extent)(value)

    def _whole(self, slots: list[Tensor]) -> Tensor | None:
        """The slots and the padding between them as one flat tensor, if they lie one behind the other (see backend.arena)."""
        if not slots:
            return None
        key = slots[0].data_ptr(), len(slots)
        if key not in self._packed:
            self._packed[key] = packed(slots)
        return self._packed[key]

    def _copy(self, slots: list[Tensor], values: list[Tensor]) -> None:
        """Copy a bucket: at once where the values lie as the slots do; who has slots reads blocks, which never move."""
        key = slots[0].data_ptr(), values[0].data_ptr(), len(slots)
        if key not in self._pairs:
            self._pairs[key] = alike(slots, values)
        pair = self._pairs[key]
        if pair is not None:
            pair[0].copy_(pair[1])
            return
        for slot, value in zip(slots, values, strict=True):
            slot.copy_(value)

    def _all_reduce(self, values: list[Tensor], op: ReduceOp, slots: list[Tensor]) -> list[Tensor]:
        whole = self._whole(slots)
        if whole is not None:
            self._copy(slots, values)
            dist.all_reduce(whole, _REDUCE[op], group=self._group)
            return slots
        bucket = _flat(values) if len(values) > 1 else values[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(bucket, _REDUCE[op], group=self._group)
        return _unflat(bucket.reshape(-1), [tuple(v.shape) for v in values])

    def _all_gather(self, values: list[Tensor], extents: list[tuple[int, ...]], dim: int, slots: list[Tensor]) -> list[Tensor]:
        shapes = [[_with(e, dim, part_of(e[dim], self._parts, r)[1]) for e in extents] for r in range(self._parts)]
        widths = [sum(map(_numel, shape)) for shape in shapes]
        width = max(widths)
        own = self._scratch.flat(values)
        if own.numel() < width:  # gloo gathers equal lengths only
            own = torch.cat([own, own.new_empty(width - own.numel())])
        straight = len(values) == 1 and dim == 0 and min(widths) == width
        if straight:
            gathered = slots[0].view(-1) if slots else own.new_empty(self._parts * width)
        else:
            gathered = self._scratch.take("received", own, self._parts * width)
        dist.all_gather_into_tensor(gathered, own, group=self._group)
        if straight:
            return slots or [gathered.view(extents[0])]
        rows = [_unflat(gathered[r * width : r * width + widths[r]], shapes[r]) for r in range(self._parts)]
        return _joined(rows, dim, slots)

    def _reduce_scatter(
        self, values: list[Tensor], extents: list[tuple[int, ...]], op: ReduceOp, dim: int, slots: list[Tensor]
    ) -> list[Tensor]:
        mine = [_with(e, dim, part_of(e[dim], self._parts, self._index)[1]) for e in extents]
        rows = self._swap(values, extents, dim, [mine] * self._parts)
        if slots and op is ReduceOp.SUM and self._parts > 1:
            return [_sum_into(slot, [row[n] for row in rows]) for n, slot in enumerate(slots)]
        return [reduce_parts(op, [row[n] for row in rows]) for n in range(len(values))]

    def _all_to_all(
        self, values: list[Tensor], extents: list[tuple[int, ...]], src_dim: int, dst_dim: int, slots: list[Tensor]
    ) -> list[Tensor]:
        mine = [_with(e, dst_dim, part_of(e[dst_dim], self._parts, self._index)[1]) for e in extents]
        lengths = [[part_of(e[src_dim], self._parts, r)[1] for e in extents] for r in range(self._parts)]
        incoming = [[_with(m, src_dim, length) for m, length in zip(mine, row, strict=True)] for row in lengths]
        rows = self._swap(values, extents, dst_dim, incoming)
        return _joined(rows, src_dim, slots)

    def _swap(
        self, values: list[Tensor], extents: list[tuple[int, ...]], dim: int, incoming: list[list[tuple[int, ...]]]
    ) -> list[list[Tensor]]:
        """Cut every value along ``dim``, send part r to neighbour r, return what came from each neighbour."""
        cuts = [[part_of(e[dim], self._parts, r) for e in extents] for r in range(self._parts)]
        outgoing = [[v.narrow(dim, *span) for v, span in zip(values, spans, strict=True)] for spans in cuts]
        send_widths = [sum(piece.numel() for piece in pieces) for pieces in outgoing]
        recv_widths = [sum(map(_numel, shapes)) for shapes in incoming]
        # The parts of one value along its first dim lie one behind the other already.
        alone = len(values) == 1 and dim == 0
        sent = values[0].reshape(-1) if alone else self._scratch.flat([piece for pieces in outgoing for piece in pieces])
        received = self._scratch.take("received", sent, sum(recv_widths))
        dist.all_to_all_single(received, sent, recv_widths, send_widths, group=self._group)
        starts = [0, *running_sum(recv_widths)]
        pieces = [received[start : start + width] for start, width in zip(starts, recv_widths, strict=False)]
        return [_unflat(piece, shapes) for piece, shapes in zip(pieces, incoming, strict=True)]


def scratches(plan: Plan, rank: int) -> Mapping[str, Mapping[str, int]]:
    """Stream -> use -> bytes of the largest act among the collectives of a rank."""
    found: dict[str, dict[str, int]] = {}
    for task in plan.tasks:
        if isinstance(task.body, Boxing) and rank in plan.ranks_of(task):
            here = found.setdefault(task.stream, {})
            for use, size_bytes in GroupExchange(plan, task, rank, None).needs().items():
                here[use] = max(here.get(use, 0), size_bytes)
    return found


def scratch_bytes(plan: Plan, rank: int) -> int:
    """What the collectives of a rank take beside its registers and workspaces; no part of the Plan's own count."""
    return sum(sum(sizes.values()) for sizes in scratches(plan, rank).values())


def packed(slots: Sequence[Tensor], gap_bytes: int = ALIGNMENT_BYTES) -> Tensor | None:
    """One flat tensor over contiguous tensors of one dtype that lie one behind the other in memory, else None.

    Args:
        gap_bytes: the space between two of them is less; it belongs to the result.
    """
    first = slots[0]
    at, size = first.data_ptr(), first.element_size()
    for slot in slots:
        if not 0 <= slot.data_ptr() - at < gap_bytes or not slot.is_contiguous() or slot.dtype != first.dtype:
            return None
        at = slot.data_ptr() + slot.nbytes
    return first.as_strided(((at - first.data_ptr()) // size,), (1,), first.storage_offset())


def alike(slots: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Both as one flat tensor, if each lies in one bucket and tensor by tensor at the same distance from its first, else None."""
    same = all(
        slot.data_ptr() - slots[0].data_ptr() == value.data_ptr() - values[0].data_ptr() and slot.nbytes == value.nbytes
        for slot, value in zip(slots, values, strict=True)
    )
    one, other = (packed(slots), packed(values)) if same else (None, None)
    return None if one is None or other is None or one.dtype != other.dtype else (one, other)


def _joined(rows: list[list[Tensor]], dim: int, slots: list[Tensor]) -> list[Tensor]:
    """Tensor n from its parts rows[0][n], rows[1][n], ..."""
    if slots:
        return [torch.cat([row[n] for row in rows], dim, out=slot) for n, slot in enumerate(slots)]
    return [torch.cat([row[n] for row in rows], dim) for n in range(len(rows[0]))]


def _sum_into(slot: Tensor, parts: Sequence[Tensor]) -> Tensor:
    torch.add(parts[0], parts[1], out=slot)
    for part in parts[2:]:
        slot.add_(part)
    return slot


def _with(shape: tuple[int, ...], dim: int, length: int) -> tuple[int, ...]:
    return (*shape[:dim], length, *shape[dim + 1 :])


def _numel(shape: Sequence[int]) -> int:
    numel = 1
    for extent in shape:
        numel *= extent
    return numel


def _flat(values: Sequence[Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in values]) if len(values) > 1 else values[0].reshape(-1)


def _unflat(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    return [piece.view(shape) for piece, shape in zip(torch.split(flat, [_numel(s) for s in shapes]), shapes, strict=True)]
