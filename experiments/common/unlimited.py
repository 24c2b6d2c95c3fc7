"""Clusters whose devices hold everything: for runs that did fit, in formats of their own."""

from __future__ import annotations

from dataclasses import replace

from planner.ir.cluster import Cluster

__all__ = ["with_unlimited_memory"]

_BYTES = 10**15


def with_unlimited_memory(cluster: Cluster) -> Cluster:
    """The cluster with 10^15 bytes of memory on each device."""
    return replace(cluster, device=replace(cluster.device, memory_bytes=_BYTES))
