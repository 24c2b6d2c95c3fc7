"""The facts of one screen on a Plan.  Times are ``theory``: the search's prices, nothing was played."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import simulator
from planner.ir.plan import Plan
from planner.stages.recompute.asked import KEPT_OPTION
from regista.analysis.answer.limiter import Limiter, limiter
from regista.analysis.answer.patterns import Pattern, patterns
from regista.analysis.answer.roles import Role, axis_roles, zero_level
from regista.analysis.budget import Use, memory
from regista.analysis.outlook import planned_utilisation, tokens_per_sample

__all__ = ["Answer", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """fullest: the placement whose devices hold most.   uses: bytes of all blocks on each of them, by what they are for.

    live_bytes: of these blocks those held at once, at the worst moment of a step; worked out where all of them are more than a device has,
        else all of them.   roles: placement id -> what each axis of its mesh is for.   zero: level, 0 for none.
    tokens_per_s: None: not a model of tokens.   utilisation: MFU, or HFU where work is done twice, and how much, 0 to 1.
    """

    plan: Plan
    samples_per_s: float
    tokens_per_s: float | None
    utilisation: tuple[str, float] | None
    fullest: str
    uses: Mapping[Use, int]
    live_bytes: int
    device_bytes: int
    roles: Mapping[str, tuple[Role, ...]]
    zero: int
    patterns: tuple[Pattern, ...]
    limiter: Limiter

    @property
    def total_bytes(self) -> int:
        return sum(self.uses.values())

    @property
    def fits(self) -> bool:
        """SEMANTICS: the blocks that are held at once, at the worst moment of a step."""
        return self.live_bytes <= self.device_bytes

    @property
    def split_text(self) -> str:
        """``pipeline 4 x data 2 x tensor 8, ZeRO-1``, or by placement where these differ."""
        ways = dict.fromkeys(self._axes(placement.id) for placement in self.plan.placements)
        stages = len(self.plan.placements)
        parts = [f"pipeline {stages} of {' or '.join(ways)}" if len(ways) > 1 else _joined(stages, next(iter(ways)))]
        if self.zero:
            parts.append(f"ZeRO-{self.zero}")
        if self.plan.options.get("recompute") == "blocks":
            parts.append("blocks computed again in the backward pass")
        elif KEPT_OPTION in self.plan.options:
            parts.append(f"a part computed again in the backward pass ({self.plan.options['recompute']})")
        if stages > 1:
            parts.append(f"schedule {self.plan.options.get('schedule', '1f1b')}")
        return ", ".join(parts)

    def _axes(self, placement: str) -> str:
        """``data 2 x tensor 8``; axes of one role are multiplied."""
        extents: dict[Role, int] = {}
        for role, extent in zip(self.roles[placement], self.plan.placement[placement].mesh, strict=True):
            if extent > 1:
                extents[role] = extents.get(role, 1) * extent
        return (
            " x ".join(f"{role.value} {extent}" for role, extent in sorted(extents.items(), key=lambda entry: entry[0].value))
            or "one device"
        )


def answer(plan: Plan) -> Answer:
    """Work all of it out; no search; the token game is played only where all blocks together are more than a device has."""
    roles = axis_roles(plan)
    step_s, tokens = plan.search.objective_s, tokens_per_sample(plan)
    held = memory(plan)
    fullest = max(held, key=lambda placement: sum(held[placement].values()))
    most_bytes, device_bytes = sum(held[fullest].values()), plan.cluster.device.memory_bytes
    samples_per_s = plan.batch_size / step_s if step_s > 0 else 0.0
    return Answer(
        plan=plan,
        samples_per_s=samples_per_s,
        tokens_per_s=tokens * samples_per_s if tokens else None,
        utilisation=planned_utilisation(plan),
        fullest=fullest,
        uses=held[fullest],
        live_bytes=most_bytes if most_bytes <= device_bytes else max(simulator.dry_run(plan).values()),
        device_bytes=device_bytes,
        roles=roles,
        zero=zero_level(plan, roles),
        patterns=patterns(plan, roles),
        limiter=limiter(plan),
    )


def _joined(stages: int, axes: str) -> str:
    if stages == 1:
        return axes
    return f"pipeline {stages}" if axes == "one device" else f"pipeline {stages} x {axes}"
