"""Clusters: devices in nodes, of one kind or of several, the links between them, and the TOML that says so."""

from planner.ir.cluster.cluster import Between, Cluster, DeviceSpec, LinkSpec, Rate
from planner.ir.cluster.toml import cluster_toml, load_cluster, parse_cluster, save_cluster

__all__ = ["Between", "Cluster", "DeviceSpec", "LinkSpec", "Rate", "cluster_toml", "load_cluster", "parse_cluster", "save_cluster"]
