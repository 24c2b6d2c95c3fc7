"""Steady state without simulation: the timed marked graph of a Plan, its liveness, its period and the cycle that sets it."""

from simulator.steady.graph import marked_graph
from simulator.steady.liveness_proof import check_live
from simulator.steady.state import SteadyState, steady_state

__all__ = ["SteadyState", "check_live", "marked_graph", "steady_state"]
