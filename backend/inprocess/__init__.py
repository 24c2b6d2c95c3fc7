"""All devices of a Plan in one process: ``run``, performer ``threads``.

perform       checks, registers, outcome                      engine       actors of all ranks, threads
body          the work of one act                             rendezvous   where ranks meet for a collective
destinations  where results of a later act go                 flights      acts put into lanes, until they are seen to end
hazards       which act waits for which event                 failures     what the caller is told
"""

from backend.inprocess.perform import run

__all__ = ["run"]
