"""What a performed Plan leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from backend.layout.sharding import join_parts
from planner.ir.plan import Access, Plan
from planner.ir.traces.trace import Trace

__all__ = ["Outcome", "gather", "packed", "state_homes", "unpacked"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``states`` and ``gradients`` are logical tensors by name; ``gradients`` are the last step's, empty unless asked for.

    first_step: steps that were done before this run; ``losses`` begin there.
    memory: rank -> bytes of its registers, planned and allocated, and of its process (backend.worker.registers.Registers.ended).
    """

    trace: Trace
    losses: tuple[float, ...]
    states: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    first_step: int = 0
    memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


def gather(plan: Plan, wanted: Mapping[str, Access], parts: Mapping[tuple[str, int, int], Tensor]) -> dict[str, Tensor]:
    """Logical tensors by name.

    Args:
        wanted: name -> where it lies.
        parts: (regst, index, rank) -> local tensor.
    """
    whole: dict[str, Tensor] = {}
    for name, access in wanted.items():
        regst = plan.regst[access.regst]
        placement, tensor = plan.placement[regst.placement], regst.tensors[access.index]
        along = {placement.coordinate(rank): parts[access.regst, access.index, rank] for rank in placement.ranks}
        whole[name] = join_parts(along, tensor.sbp, placement.mesh, tensor.shape)
    return whole


def packed(parts: Mapping[tuple[str, int], Tensor]) -> dict[str, Tensor]:
    """One rank's parts by (regst, index), copied, as ``torch.load(weights_only=True)`` takes them."""
    return {f"{regst}\n{index}": value.clone() for (regst, index), value in parts.items()}


def unpacked(of_rank: Mapping[int, Mapping[str, Tensor]]) -> dict[tuple[str, int, int], Tensor]:
    """rank -> ``packed`` parts  ->  (regst, index, rank) -> part, as ``gather`` takes them."""
    by_place: dict[tuple[str, int, int], Tensor] = {}
    for rank, parts in of_rank.items():
        for key, value in parts.items():
            regst, index = key.rsplit("\n", 1)
            by_place[regst, int(index), rank] = value
    return by_place


def state_homes(plan: Plan) -> dict[str, Access]:
    """State name -> where its value lies; a tied weight has several homes with one value, the first is taken."""
    homes: dict[str, Access] = {}
    for entry in plan.states:
        homes.setdefault(entry.name, Access(name=entry.name, regst=entry.regst, index=entry.index))
    return homes
