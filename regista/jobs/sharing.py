"""What the acts of a job's Plan feel of each other on the ports of its ranks: messages between stages, collectives once per step, and what passes send.

    port of the rank that stands for stage 1
      in   <- send.0 (activations of stage 0)          return.2 (gradients of stage 2)          both at once: each at its share
      out  -> send.1, return.1 (one after the other)    gather, reduce    exchanges of experts in forward.1, backward.1

(1) share of a port = bytes of the act through it / (bandwidth of the port x price of the act), at most 1                     -> port_shares()
(2) acts on one port are as quick as max-min fairness lets them (simulator.network.act_flows)                                 -> shared_ports()

The port is that in which messages travel: the network's where neighbouring stages lie in two nodes (domains of the fast links), else the node's.
What a pass sends over it is taken as spread evenly over the pass.  Part of a collective that hides beside a pass travels unseen, as it has no act.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.cost.nccl import Kind
from planner.ir.collective import Collective
from planner.ir.plan import Plan, Task
from regista.jobs.job import Job
from regista.jobs.memory import message_bytes
from regista.jobs.pipeline import task_name
from regista.jobs.prices import Prices
from regista.jobs.timing import JobCost, gathers, reductions
from regista.jobs.work import Chunk, Group, Kernel, Meeting, Ring, chunk_stacks, chunks_of, layer_backward, layer_forward
from simulator.network.act_flows import Contention, Together, contention_on

__all__ = ["port_shares", "shared_ports"]


def shared_ports(job: Job, prices: Prices, plan: Plan, cost: JobCost) -> Contention | None:
    """Equation (2); None: no two acts of the Plan want more of a port than it has.

    Args:
        plan, cost: of the job.
    """
    return contention_on(plan, port_shares(job, prices, plan, cost), {}) if job.layout.pp > 1 else None


def port_shares(job: Job, prices: Prices, plan: Plan, cost: JobCost) -> Mapping[Together, Mapping[str, float]]:
    """Equation (1) of every act that sends something through a port of messages: (task, ranks) -> port -> share."""
    at, machine = job.layout, prices.machine
    chunks = {chunk.number: chunk for chunk in chunks_of(job)}
    inside = Group(2, at.tp * at.cp * at.dp).members_per_node(machine.domain) > 1
    bandwidth = machine.node_bytes_per_s if inside else machine.nic_bytes_per_s
    shares: dict[Together, Mapping[str, float]] = {}
    passes: dict[tuple[str, int, tuple[int, ...]], float] = {}

    def sent_bytes(task: Task, chunk: Chunk) -> tuple[float, float]:
        """Through the port, and seconds in which it is."""
        name, price_s = task_name(task), cost.seconds[task.id]
        match name.kind:
            case "send" | "return":
                return message_bytes(job), price_s
            case "gather" | "reduce":
                once = gathers(job, chunk) if name.kind == "gather" else reductions(job, chunk)
                whole_s = sum(prices.meeting_s(one.collective, one.total_bytes, one.group) for one in once)
                return _through(once, machine.domain, inside), whole_s
            case _:
                layers = layer_forward if name.kind == "forward" else layer_backward
                own = chunk_stacks(job, chunk)
                key = name.kind, len(own), tuple(count for _, count in own)
                if key not in passes:
                    passes[key] = sum(count * _through(layers(stack), machine.domain, inside) for stack, count in own)
                return passes[key], price_s

    for task in plan.tasks:
        name = task_name(task)
        if name.kind == "update":
            continue
        chunk = chunks[name.number]
        size_bytes, whole_s = sent_bytes(task, chunk)
        if size_bytes <= 0 or cost.seconds[task.id] <= 0 or whole_s <= 0:
            continue
        share = min(1.0, size_bytes / (bandwidth * whole_s))
        there = {"send": name.number + 1, "return": name.number - 1}.get(name.kind, name.number)
        shares[task.id, (chunk.stage,)] = {f"out:{chunk.stage}": share, f"in:{chunks[there].stage}": share}
    return shares


def _through(kernels: Iterable[Kernel], domain: int, inside: bool) -> float:
    """Bytes that one device sends through its node's port (inside) or its network port in these kernels."""
    total = 0.0
    for kernel in kernels:
        match kernel:
            case Meeting():
                total += kernel.count * _of_meeting(kernel, domain, inside)
            case Ring() if _is_inside(kernel.group, domain) is inside:
                total += kernel.rounds * kernel.size_bytes
            case _:
                pass
    return total


def _is_inside(group: Group, domain: int) -> bool:
    return group.members_per_node(domain) >= group.size


def _of_meeting(meeting: Meeting, domain: int, inside: bool) -> float:
    """A device's part of an exchange, or of a ring, of which each device of a node brings a part to the next node."""
    group, local = meeting.group, meeting.group.members_per_node(domain)
    if group.size <= 1 or _is_inside(group, domain) is not inside:
        return 0.0
    if meeting.collective is Collective.ALL_TO_ALL:
        away = group.size - 1 if inside else group.size - local
        return meeting.share_sent(domain) * meeting.total_bytes / group.size * away / group.size
    return Kind.of(meeting.collective).sent_share(group.size) * meeting.total_bytes / (1 if inside else local)
