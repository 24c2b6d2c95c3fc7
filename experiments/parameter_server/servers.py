"""Parameter servers as flows: workers push gradients, servers update, workers pull parameters.

    synchronous                                     asynchronous
    worker 0  compute push . . . . pull compute     worker 0  compute push pull compute push pull
    worker 1  compute . . push . . pull compute     worker 1  compute . push pull compute . push pull
    server                    update                server             u   u              u    u

Synchronous: a server updates when every worker's gradient is there, and then everybody pulls.  Asynchronous: it updates for each push, and
only that worker pulls; so nobody waits for a slow worker, but a gradient was computed with parameters some updates old (its staleness).

Each of s servers holds 1/s of the parameters.  A server may sit on a worker's rank; what stays on a rank takes no time.  Closed form of sending
n bytes from N workers:  T = N n / (s beta), and as long to fetch  -> parameter_server_send_s().

Source: Li et al. 2014, "Scaling distributed machine learning with the parameter server"; one server among the workers is the collecting rank
of Gibiansky 2017, "Bringing HPC techniques to deep learning".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from planner.ir.cluster import LinkSpec
from planner.ir.errors import InvalidPlan
from simulator.network.fabric import Fabric
from simulator.network.flows import FlowTrace
from simulator.network.links import Flow

__all__ = ["ServerJob", "Updating", "parameter_server_send_s", "send_s", "server_flows", "staleness", "step_ends_s"]


class Updating(Enum):
    """When a server updates."""

    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerJob:
    """``steps`` training steps of data parallelism over parameter servers.

    size_bytes: gradients of the whole model, and as many bytes of parameters.
    workers, servers: ranks of the fabric; a rank may be in both.
    compute_s: forward and backward of one step, per worker.   update_s: a server's update.
    """

    size_bytes: float
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    steps: int = 1
    compute_s: tuple[float, ...] = ()
    update_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.workers or not self.servers or self.steps < 1:
            raise InvalidPlan(f"{len(self.workers)} workers, {len(self.servers)} servers, {self.steps} steps; at least 1 of each is needed")
        if self.compute_s and len(self.compute_s) != len(self.workers):
            raise InvalidPlan(f"compute_s of {len(self.compute_s)} workers for {len(self.workers)} workers; give one each, or none")


def _push(step: int, worker: int, server: int) -> str:
    return f"push/{step}:{worker}-{server}"


def _pull(step: int, worker: int, server: int) -> str:
    return f"pull/{step}:{server}-{worker}"


def server_flows(job: ServerJob, fabric: Fabric, updating: Updating) -> tuple[Flow, ...]:
    """The pushes and pulls of a job, in order of steps.

    Raises:
        InvalidCluster: a rank is not on the fabric.
    """
    return tuple(_flows(job, fabric, updating))


def _flows(job: ServerJob, fabric: Fabric, updating: Updating) -> Iterator[Flow]:
    compute_s = dict(zip(job.workers, job.compute_s or (0.0,) * len(job.workers), strict=True))
    part_bytes = job.size_bytes / len(job.servers)
    for step in range(job.steps):
        for worker in job.workers:
            had = tuple(_pull(step - 1, worker, server) for server in job.servers) if step else ()
            for server in job.servers:
                route = fabric.route(worker, server)
                yield Flow(name=_push(step, worker, server), route=route, size_bytes=part_bytes, after=had, extra_s=compute_s[worker])
        for worker in job.workers:
            for server in job.servers:
                senders = job.workers if updating is Updating.SYNCHRONOUS else (worker,)
                yield Flow(
                    name=_pull(step, worker, server),
                    route=fabric.route(server, worker),
                    size_bytes=part_bytes,
                    after=tuple(_push(step, sender, server) for sender in senders),
                    extra_s=job.update_s,
                )


def send_s(job: ServerJob, trace: FlowTrace, step: int = 0) -> float:
    """Seconds from the first push of a step to the last byte at the last server: the send phase."""
    times = [trace.times[_push(step, worker, server)] for worker in job.workers for server in job.servers]
    return max(t.end_s for t in times) - min(t.start_s for t in times)


def step_ends_s(job: ServerJob, trace: FlowTrace, worker: int) -> tuple[float, ...]:
    """When a worker had its new parameters, per step."""
    return tuple(max(trace.times[_pull(step, worker, server)].end_s for server in job.servers) for step in range(job.steps))


def staleness(job: ServerJob, trace: FlowTrace) -> tuple[int, ...]:
    """For every push to the first server after a worker's first: how many updates by others it missed, in order of workers and steps.

    Counted between the arrival of its previous gradient, after which it pulls, and the arrival of this one; of gradients that arrive at the
    same instant none misses the other.
    """
    server = job.servers[0]
    arrivals = {worker: [trace.times[_push(step, worker, server)].end_s for step in range(job.steps)] for worker in job.workers}
    missed: list[int] = []
    for worker in job.workers:
        for before_s, after_s in zip(arrivals[worker], arrivals[worker][1:], strict=False):
            others = (arrivals[other] for other in job.workers if other != worker)
            missed.append(sum(bisect_left(ends, after_s) - bisect_right(ends, before_s) for ends in others))
    return tuple(missed)


def parameter_server_send_s(size_bytes: float, num_senders: int, num_servers: int, link: LinkSpec) -> float:
    """Time until N workers have sent n bytes of gradients to s servers that hold equal parts, in seconds.

    The servers' ports are the bottleneck while N >= s; else the workers' own.

    Raises:
        ValueError: a count < 1 or size_bytes < 0.

    Source: Gibiansky 2017, "Bringing HPC techniques to deep learning" (one collecting rank among N + 1); Li et al. 2014, "Scaling distributed
    machine learning with the parameter server" (many servers).

    >>> parameter_server_send_s(1.2e9, 9, 1, LinkSpec(latency_s=0.0, bandwidth_bytes_per_s=1e9))
    10.8
    """
    if min(num_senders, num_servers) < 1 or size_bytes < 0:
        raise ValueError(f"{num_senders} senders, {num_servers} servers, {size_bytes} bytes; at least 1 of each and 0 bytes")
    return link.time_s(size_bytes * max(num_senders / num_servers, 1.0))
