"""Plans for each number of hosts that an elastic run may have: the given one, and the same program planned anew for more or fewer hosts.

    --elastic 1:3, a Plan for 2 hosts   -->   hosts 1: a search   hosts 2: the Plan itself   hosts 3: a search

All have the same global batch and the same micro-batches, so a step means the same on any of them; stages, meshes and layouts are searched anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import regista.api as api
from planner.cost.routing import ExpertLoad
from planner.frontend import Program
from planner.ir.errors import RegistaError, Unsupported
from planner.ir.graph import Mode
from planner.ir.plan import Plan
from regista.deploy import node_layout
from regista.origin import record_like

__all__ = ["elastic_plans", "hosts_of"]

_FIXED = {
    "pins": "pinned layouts",
    "cuts": "cuts between stages",
    "quotas": "quotas",
    "order": "a schedule from a file",
    "interleave": "interleaved stages",
    "hold": "a limit of held micro-batches",
    "batch_norm": "local batch norm, with a part per device",
    "samples": "a padded batch",
    "robust": "pessimistic prices",
}
"""What a Plan was told about its own devices, by the option that records it."""


def hosts_of(text: str) -> range:
    """The numbers of hosts that ``MIN:MAX`` names.

    Raises:
        Unsupported: it is not of that form, or names none or one number.
    """
    form = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text)
    if form is None or not 1 <= int(form[1]) < int(form[2]):
        raise Unsupported(f"--elastic {text}: write MIN:MAX, numbers of hosts with 1 <= MIN < MAX, as in 1:4")
    return range(int(form[1]), int(form[2]) + 1)


def elastic_plans(plan: Plan, program: Program, hosts: range) -> Mapping[int, Plan]:
    """Hosts -> the Plan for so many, each found by a search of its own.

    Args:
        program: of ``plan`` (regista.programs.planned_program).

    Raises:
        Unsupported: the range leaves out the hosts that ``plan`` was made for; ``plan`` is fixed to its devices by what it was asked for; or the
            model cannot be trained on some number of hosts of the range, with the planner's reason, or leaves devices there without a part.
    """
    own = node_layout(plan).num_nodes
    if own not in hosts:
        raise Unsupported(
            f"plan {plan.plan_id} was made for {own} hosts, which --elastic {hosts[0]}:{hosts[-1]} leaves out; plan for a number inside, or widen it"
        )
    if plan.mode is not Mode.TRAIN:
        raise Unsupported(f"plan {plan.plan_id} is an evaluation, which saves nothing to go on from; leave --elastic out")
    fixed = [what for option, what in _FIXED.items() if plan.options.get(option)]
    if fixed or plan.cluster.parts:
        what = fixed[0] if fixed else f"{len(plan.cluster.parts)} kinds of hosts"
        raise Unsupported(
            f"plan {plan.plan_id} has {what}, which says nothing of other numbers of hosts; plan without, or leave --elastic out"
        )
    if plan.cluster.nic is None:
        raise Unsupported(
            f"cluster {plan.cluster.name} of plan {plan.plan_id} has no links between hosts ([links.nic]), so nothing can be planned for "
            f"{hosts[-1]} of them; add them to its file and plan again"
        )
    plans = {count: plan if count == own else _planned_for(plan, program, count) for count in hosts}
    for count, made in plans.items():
        _check_shared(count, made)
    return plans


def _check_shared(hosts: int, plan: Plan) -> None:
    """The devices of a Plan share the work of a step: where none along an axis ever meet, each of them performs the same.

    With several placements the stages share it, whatever their axes do.

    Raises:
        Unsupported: along an axis of the only placement they do not.
    """
    if len(plan.placements) > 1:
        return
    mesh, met = plan.placements[0].mesh, {task.meeting_axis for task in plan.tasks}
    for axis, extent in enumerate(mesh):
        if extent > 1 and axis not in met:
            raise Unsupported(
                f"on {hosts} hosts the model has no use for {plan.num_ranks} devices: of mesh {' x '.join(map(str, mesh))}, {extent} divide neither "
                f"the {plan.batch_size // plan.micro_batches} samples of a micro-batch nor what is in the layers, so each of them would do the same; "
                f"give --elastic a range without {hosts}, or plan with a batch that {extent} divides"
            )


def _planned_for(plan: Plan, program: Program, hosts: int) -> Plan:
    options = plan.options
    has_stages = len(plan.placements) > 1
    try:
        made = api.plan(
            program,
            replace(plan.cluster, num_nodes=hosts),
            stages=None if has_stages else 1,
            micro_batches=plan.micro_batches,
            schedule=options.get("schedule", "1f1b"),
            bucket_bytes=int(options["bucket_bytes"]) if "bucket_bytes" in options else None,
            recompute={"blocks": True, "none": False}.get(options.get("recompute", "")),
            zero=int(options["zero"]) if "zero" in options else None,
            context=options.get("context"),
            load=ExpertLoad.recorded(options),
            balance=float(options["balance"]) if has_stages and "balance" in options else None,
            model=plan.model,
        )
    except RegistaError as error:
        raise Unsupported(
            f"on {hosts} hosts of {plan.cluster.devices_per_node} devices this model cannot be trained: {error}; "
            f"give --elastic a range without {hosts}, or plan without what cannot be met there"
        ) from error
    made = replace(made, options={**{key: value for key, value in options.items() if key not in made.options}, **made.options})
    record_like(plan, made)
    return made
