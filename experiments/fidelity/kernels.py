"""A fragment as the kernels that a GPU framework would launch for it, and what a kernel takes.

(1) product   t = 2 b m n k / (share * peak * k/(k + k0) * w/(w + w0)),  w = b ceil(m/T) ceil(n/T) / units   -> product_s
              k0: products with a short inner extent start and end more than they work;  w: waves of T x T tiles over the device's units
(2) sweep     t = bytes / (share * memory rate)                                                              -> in Kernels.sweep_bytes
(3) act       t = max(launch * kernels, sum of (1) and (2)): the host runs ahead of the device, or does not  -> the caller adds them up

An elementwise op, a softmax or a normalisation is swept over memory once.  Ops of one numbered block that follow each other without a
product in between are one kernel, as hand-written layers have it (bias and GELU; scale, mask and softmax): it reads what comes from outside
and writes what is read outside.  Outside of blocks every op is a kernel of its own.  Views, creations, and copies that only a product reads
(it takes strided operands) cost nothing.

Forms: (1) the usual saturating efficiency, e.g. Isaev et al. 2023, "Calculon" (tables by size); (3) Zhu et al. 2020, "Daydream".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from planner.ir.graph import ACCUMULATE, Op
from planner.ir.tensor import TensorType
from planner.opset import is_creation, is_view, traffic_bytes
from planner.opset.optimizer import UPDATES

__all__ = ["Kernels", "Product", "kernels_of"]

_PRODUCTS = frozenset({"aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.addmm.default"})
_GATHERS = frozenset({"regista.embedding", "regista.embedding_backward", "regista.pick", "regista.place"})
_BOXING = "regista.boxing"


@dataclass(frozen=True, slots=True, order=True)
class Product:
    """``batch`` products of m x k by k x n, one kernel."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    def tiles(self, edge: int) -> int:
        """Tiles of edge x edge elements of the result."""
        return self.batch * ceil(self.m / edge) * ceil(self.n / edge)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What one act launches.

    products: in order, repeated as often as they occur.   sweep_bytes: read and written by everything else.
    num_kernels: products included.   parameters: elements that an update updates.
    """

    products: tuple[Product, ...]
    sweep_bytes: int
    num_kernels: int
    parameters: int


def kernels_of(ops: Sequence[Op], types: Mapping[str, Mapping[str, TensorType]], written: frozenset[str]) -> Kernels:
    """The kernels of ops performed in order.

    Args:
        types: op id -> local types of what it reads and writes, under the names it uses (not for boxing steps, which only cut or pad).
        written: values that lie in Regsts, and so are written whoever reads them.
    """
    readers: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        for value in dict.fromkeys(op.inputs):
            readers[value].append(op)
    free = {op.id for op in ops if _is_free(op, readers, written)}
    source = _without_views(ops, free)
    products: list[Product] = []
    swept_bytes = parameters = count = 0
    groups: dict[tuple[str, int], list[Op]] = defaultdict(list)
    depth: dict[str, int] = {}
    for op in ops:
        here = max((depth.get(source.get(v, v), 0) for v in op.inputs), default=0)
        if op.id in free:
            continue
        local = types[op.id]
        if op.target in _PRODUCTS:
            products.append(_product(op, local))
            count += 1
            here += 1
        elif op.target == ACCUMULATE:
            swept_bytes += 3 * local[op.inputs[0]].size_bytes
            count += 1
        elif op.target in UPDATES:
            parameters += local[op.inputs[0]].numel
            count += 1
        elif op.target in _GATHERS or not op.module.startswith("h."):
            swept_bytes += traffic_bytes(op, local)
            count += 1
        else:
            groups[op.module.split(".")[1], here].append(op)
        depth.update((value, here) for value in op.outputs if value is not None)
    for members in groups.values():
        for linked in _linked(members, source):
            swept_bytes += _outer_bytes(linked, types, source, readers, written, free)
            count += 1
    return Kernels(products=tuple(products), sweep_bytes=swept_bytes, num_kernels=count, parameters=parameters)


def _is_free(op: Op, readers: Mapping[str, Sequence[Op]], written: frozenset[str]) -> bool:
    if op.target == _BOXING or is_view(op) or is_creation(op):
        return True
    if op.target != "aten.clone.default" or op.outputs[0] in written:
        return False
    return all(_leads_to_product(reader, readers) for reader in readers[op.outputs[0] or ""])


def _leads_to_product(op: Op, readers: Mapping[str, Sequence[Op]]) -> bool:
    if op.target in _PRODUCTS:
        return True
    return is_view(op) and all(_leads_to_product(reader, readers) for reader in readers[op.outputs[0] or ""])


def _without_views(ops: Sequence[Op], free: set[str]) -> dict[str, str]:
    """A value made by a free op -> the value that it shows."""
    source: dict[str, str] = {}
    for op in ops:
        if op.id in free and op.inputs:
            source.update((value, source.get(op.inputs[0], op.inputs[0])) for value in op.outputs if value is not None)
    return source


def _product(op: Op, local: Mapping[str, TensorType]) -> Product:
    left, right = (local[v] for v in op.inputs[-2:])
    k, n = right.shape[-2:]
    m = left.shape[-2]
    return Product(left.numel // (m * k), m, n, k)


def _linked(members: Sequence[Op], source: Mapping[str, str]) -> list[list[Op]]:
    """Ops that feed each other, directly or through views."""
    root: dict[str, str] = {op.id: op.id for op in members}
    maker = {value: op.id for op in members for value in op.outputs if value is not None}

    def find(name: str) -> str:
        while root[name] != name:
            name = root[name] = root[root[name]]
        return name

    for op in members:
        for value in op.inputs:
            fed_by = maker.get(source.get(value, value))
            if fed_by is not None:
                root[find(op.id)] = find(fed_by)
    members_of: dict[str, list[Op]] = defaultdict(list)
    for op in members:
        members_of[find(op.id)].append(op)
    return list(members_of.values())


def _outer_bytes(
    linked: Sequence[Op],
    types: Mapping[str, Mapping[str, TensorType]],
    source: Mapping[str, str],
    readers: Mapping[str, Sequence[Op]],
    written: frozenset[str],
    free: set[str],
) -> int:
    """Bytes of what the ops read from outside, and of what somebody outside reads."""
    inside = {op.id for op in linked}
    made = {value for op in linked for value in op.outputs if value is not None}

    def leaves(value: str) -> bool:
        return value in written or any(leaves(r.outputs[0] or "") if r.id in free else r.id not in inside for r in readers[value])

    entering = {source.get(v, v): types[op.id][v].size_bytes for op in linked for v in op.inputs if source.get(v, v) not in made}
    leaving = sum(types[op.id][v].size_bytes for op in linked for v in op.outputs if v is not None and leaves(v))
    return sum(entering.values()) + leaving
