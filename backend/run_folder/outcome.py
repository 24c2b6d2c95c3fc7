"""The result of a performed Plan: its trace, losses, gradients and final states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from backend.acts.outputs import StepOutputs
from backend.acts.rows import acts_of
from backend.layout.sharding import join_parts
from backend.memory.blocks import Blocks
from planner.ir.plan import Access, Plan
from planner.ir.traces.trace import Source, Trace

__all__ = ["Outcome", "assemble", "assemble_here", "gather", "copied", "state_locations", "parts_of_ranks"]


Parts = Mapping[tuple[str, int, int], Tensor]
"""(regst, index, rank) -> local tensor."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``states`` and ``gradients`` are logical tensors by name; ``gradients`` are the last step's, empty unless asked for.

    states: of a run on processes they lie in files that are read when a tensor is asked for (backend.checkpoint.leaving), so keep what you
        need more than once: ``dict(outcome.states)`` reads them all.  Empty where the run was asked to leave none.

    first_step: steps that were done before this run; ``losses`` begin there.
    losses: none where the plan has no loss.
    outputs: per step, name -> whole tensor in the order of the global batch; of Plans that have outputs.
    memory: rank -> bytes of its registers, planned and allocated, and of its process (backend.worker.registers.Registers.ended).
    """

    trace: Trace
    losses: tuple[float, ...]
    states: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    first_step: int = 0
    memory: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    outputs: tuple[StepOutputs, ...] = ()


def assemble(
    plan: Plan,
    *,
    performer: str,
    steps: int,
    rows: Mapping[int, Sequence[Sequence[int]]],
    losses: Mapping[int, float],
    states: Mapping[str, Tensor],
    gradients: Parts | None,
    peak_bytes: Mapping[int, int],
    about: Mapping[str, str],
    first_step: int = 0,
    memory: Mapping[int, Mapping[str, int]] | None = None,
    outputs: Mapping[int, StepOutputs] | None = None,
    held_steps: tuple[tuple[int, int], ...] = (),
) -> Outcome:
    """One Outcome of what the ranks of a run left behind.

    Args:
        rows: rank -> its acts (backend.acts.rows).   losses: step -> loss.
        states: logical tensors by name.   gradients: parts of plan.gradients; None: nobody asked for them.
        peak_bytes: rank -> the most that its blocks held at once.
        outputs: step -> what left it beside the loss.   held_steps: of which there are rows (Trace.held_steps).
    """
    in_order = tuple(losses[step] for step in sorted(losses)) if plan.has_loss else ()
    held = {str(rank): size_bytes for rank, size_bytes in peak_bytes.items()}
    trace = Trace(
        source=Source.RUN,
        performer=performer,
        plan_id=plan.plan_id,
        steps=steps,
        acts=acts_of(plan, rows),
        peak_bytes=held,
        register_bytes=held,
        losses=in_order,
        about=about,
        held_steps=held_steps,
    )
    return Outcome(
        trace=trace,
        losses=in_order,
        states=states,
        gradients={} if gradients is None else gather(plan, plan.gradients, gradients),
        first_step=first_step,
        memory=memory or {},
        outputs=tuple(outputs[step] for step in sorted(outputs)) if outputs else (),
    )


def assemble_here(
    plan: Plan,
    blocks: Mapping[int, Blocks],
    *,
    performer: str,
    steps: int,
    rows: Mapping[int, Sequence[Sequence[int]]],
    losses: Mapping[int, float],
    outputs: Mapping[int, StepOutputs],
    gradients: bool,
    about: Mapping[str, str],
) -> Outcome:
    """The Outcome of a run whose ranks all lie in this process."""
    locations = state_locations(plan)
    parts = {
        (access.regst, access.index, rank): _on_host(blocks[rank].state_of(access.regst, access.index))
        for access in locations.values()
        for rank in plan.ranks_holding(access.regst)
    }
    tapped = {(*place, rank): _on_host(value) for rank, of_rank in blocks.items() for place, value in of_rank.tapped.items()}
    return assemble(
        plan,
        performer=performer,
        steps=steps,
        rows=rows,
        losses=losses,
        states=gather(plan, locations, parts),
        gradients=tapped if gradients else None,
        peak_bytes={rank: of_rank.peak_bytes for rank, of_rank in blocks.items()},
        about=about,
        outputs=outputs,
    )


def _on_host(value: Tensor) -> Tensor:
    """A copy on the CPU, whatever the caller does to the blocks afterwards."""
    return value.to("cpu", copy=True)


def gather(plan: Plan, wanted: Mapping[str, Access], parts: Parts) -> dict[str, Tensor]:
    """Logical tensors by name.

    Args:
        wanted: name -> where it lies.
    """
    whole: dict[str, Tensor] = {}
    for name, access in wanted.items():
        regst = plan.regst[access.regst]
        placement, tensor = plan.placement[regst.placement], regst.tensors[access.index]
        along = {placement.coordinate(rank): parts[access.regst, access.index, rank] for rank in placement.ranks}
        whole[name] = join_parts(along, tensor.sbp, placement.mesh, tensor.shape)
    return whole


def copied(parts: Mapping[tuple[str, int], Tensor]) -> dict[tuple[str, int], Tensor]:
    """One rank's parts by (regst, index), each in the host's memory, of its own size: torch.save writes whole storages."""
    return {key: value.to("cpu", copy=True) for key, value in parts.items()}


def parts_of_ranks(of_rank: Mapping[int, Mapping[tuple[str, int], Tensor]]) -> dict[tuple[str, int, int], Tensor]:
    """rank -> its parts by (regst, index)  ->  the Parts that ``gather`` takes."""
    return {(*key, rank): value for rank, parts in of_rank.items() for key, value in parts.items()}


def state_locations(plan: Plan) -> dict[str, Access]:
    """State name -> where its value lies; a tied weight lies at several places with one value, the first is taken."""
    locations: dict[str, Access] = {}
    for entry in plan.states:
        locations.setdefault(entry.name, Access(name=entry.name, regst=entry.regst, index=entry.index))
    return locations
