"""The choice problem of a staged graph: its strategies, their costs, and the memory that they hold."""

from planner.search.formulation.build import build_model
from planner.search.formulation.layout_sets import LayoutSets
from planner.search.formulation.mesh_tools import MeshTools
from planner.search.formulation.repriced import repriced

__all__ = ["LayoutSets", "MeshTools", "build_model", "repriced"]
