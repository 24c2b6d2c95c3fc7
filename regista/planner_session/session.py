"""PlannerSession: several searches of one program, each of which begins with what the ones before have worked out.

session = regista.PlannerSession("zoo:gpt3?batch=1536&dtype=bf16")
here = session.plan("dgx-a100:128", stages=None, micro_batches=None)
there = session.whatif(here, ["cluster.links.nic.bandwidth_GBps=100"]).plan

Traces, pieces of the model, stages, strategies and prices are kept by what they were worked out from, and looked up instead of worked out.  So a
plan of a session is the plan that ``regista.plan`` finds, but for long models (of more than 5,000 ops), whose search ends within a gap.  It begins

    - with what the session has proven of shapes on other networks, and with the best shape of the last search  (planner.parallelism.proven)
    - with the layouts that it took last for a shape, which it keeps if they are within 0.3 % of the best of it; else it searches on from them

and may take another plan within the gap that it proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.frontend import Program
from planner.ir.cluster import Cluster
from planner.ir.errors import Mismatch
from planner.ir.plan import Plan
from planner.parallelism.memory import SearchMemory
from regista.analysis.whatif import WhatIf, whatif
from regista.api import plan, program_of

__all__ = ["PlannerSession"]


class PlannerSession:
    """Searches of one program that share what they work out.

    Args:
        program: a Program, or the name of one, which is loaded once.
    """

    def __init__(self, program: Program | str) -> None:
        self._loaded_as = program if isinstance(program, str) else None
        self._program = program_of(program) if isinstance(program, str) else program
        self._name = self._loaded_as or self._program.name
        self._memory = SearchMemory()

    def plan(self, cluster: Cluster | str, **options: Any) -> Plan:
        """``regista.plan`` of the session's program; the options, and what it raises, are those of regista.plan."""
        return plan(self._program, cluster, model=self._loaded_as, memory=self._memory, **options)

    def whatif(self, before: Plan, sets: Sequence[str]) -> WhatIf:
        """A plan of this session on a changed cluster (regista.analysis.whatif).

        Raises:
            Mismatch: the plan is another program's.   RegistaError: see regista.analysis.whatif.
        """
        if before.model != self._name:
            raise Mismatch(f"plan {before.plan_id} is of {before.model}, this session of {self._name}; ask a session of that program")
        return whatif(before, sets, self._program.graph(before.micro_batches), self._memory)
