"""The network: flows on shared links, collectives as rounds of flows, and what acts of a Plan feel of each other on links."""

from simulator.network.collectives import simulate_collective
from simulator.network.flows import simulate_flows
from simulator.network.links import Sharing

__all__ = ["Sharing", "simulate_collective", "simulate_flows"]
