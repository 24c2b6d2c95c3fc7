"""Runs on several hosts: this host's share of one, and Plans for each number of hosts that an elastic run may have."""

from regista.hosts.elastic import elastic_plans, hosts_of
from regista.hosts.nodes import Saves, nodes_of, run_share

__all__ = ["Saves", "elastic_plans", "hosts_of", "nodes_of", "run_share"]
