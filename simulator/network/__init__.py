"""The network: flows on shared links, collectives as rounds of flows, and Plans whose communications share the links."""

from simulator.network.collectives import collective_flows, simulate_collective
from simulator.network.fabric import Fabric, FullMesh, Machine, Ports
from simulator.network.flows import FlowTrace, simulate_flows
from simulator.network.links import Flow, Link, Route, Sharing
from simulator.network.shared import simulate_shared

__all__ = [
    "Fabric",
    "Flow",
    "FlowTrace",
    "FullMesh",
    "Link",
    "Machine",
    "Ports",
    "Route",
    "Sharing",
    "collective_flows",
    "simulate_collective",
    "simulate_flows",
    "simulate_shared",
]
