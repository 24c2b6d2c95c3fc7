"""Clusters whose devices hold everything: for runs that did fit, in formats of their own."""

from __future__ import annotations

from dataclasses import replace

from planner.ir.cluster import Cluster

__all__ = ["with_unlimited_memory"]

_BYTES = 10**15


def with_unlimited_memory(cluster: Cluster) -> Cluster:
    """A copy of the cluster in which each device has 10^15 bytes of memory, so that every Plan fits."""
    return replace(cluster, device=replace(cluster.device, memory_bytes=_BYTES))
