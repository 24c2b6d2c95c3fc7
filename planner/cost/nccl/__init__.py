"""Seconds of NCCL's collectives by bytes, ranks and nodes: measured curves where a group was measured, NCCL's algorithms and protocols elsewhere."""

from planner.cost.nccl.groups import Group, Kind
from planner.cost.nccl.interconnect import interconnect_names
from planner.cost.nccl.model import CollectiveModel, step_latencies_s

__all__ = ["CollectiveModel", "Group", "Kind", "interconnect_names", "step_latencies_s"]
