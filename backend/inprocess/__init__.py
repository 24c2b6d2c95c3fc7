"""All devices of a Plan in one process: ``run``, performer ``threads``.

perform     checks, registers, outcome              engine       Actors of all ranks, threads, faults
body, grip  the work of an act                      rendezvous   where ranks meet for a collective
hazards     who waits for whose event               flights      acts put into lanes, until they are seen to end
"""

from backend.inprocess.perform import run

__all__ = ["run"]
