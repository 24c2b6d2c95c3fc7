"""How much more than the even load the busiest rank of an expert group has (planner.cost.routing)."""

from __future__ import annotations

from regista.jobs.job import Job

__all__ = ["busiest_rank", "dropped_share", "group_tokens"]


def group_tokens(job: Job) -> int:
    """Tokens of a micro-batch that the ranks of one expert group route together."""
    at, model = job.layout, job.model
    own = max(1, at.micro_batch * model.seq // at.cp)
    return max(1, -(-own * at.ep * at.etp // at.tp))


def busiest_rank(job: Job) -> float:
    """The busiest rank's tokens over those of even routing, at the quantile that is asked for; 1 without experts, and where no routing is given.

    Raises:
        Unsupported: the routing does not fit the experts, or there are more experts than tokens.
    """
    load, model = job.running.load, job.model
    if load is None or not model.experts:
        return 1.0
    return load.busiest(model.experts, group_tokens(job), job.layout.ep)


def dropped_share(job: Job) -> float:
    """Of the tokens' choices, those that find no room; 0 where no routing is given."""
    load, model = job.running.load, job.model
    return load.dropped(model.experts, group_tokens(job)) if load is not None and model.experts else 0.0
