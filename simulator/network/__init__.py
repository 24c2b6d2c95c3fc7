"""The network: flows on shared links, collectives as rounds of flows, and Plans whose communications share the links."""

from simulator.network.collectives import simulate_collective
from simulator.network.flows import simulate_flows
from simulator.network.links import Sharing
from simulator.network.shared import simulate_shared

__all__ = ["Sharing", "simulate_collective", "simulate_flows", "simulate_shared"]
