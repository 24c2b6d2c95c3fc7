"""Seconds of NCCL's collectives by bytes, ranks and nodes (measured curves where a group was measured, NCCL's algorithms and protocols elsewhere),
and of DeepEP's dispatch and combine of experts."""

from planner.cost.nccl.experts import ExpertModel, Phase
from planner.cost.nccl.groups import Kind
from planner.cost.nccl.interconnect import interconnect_names
from planner.cost.nccl.model import CollectiveModel

__all__ = ["CollectiveModel", "ExpertModel", "Kind", "Phase", "interconnect_names"]
