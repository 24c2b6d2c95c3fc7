"""Tables that all layout problems of one cluster and mesh share; each entry is computed once."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.cost.routing import ExpertLoad
from planner.ir.cluster import Cluster
from planner.ir.graph import LogicalGraph
from planner.search.formulation.layout_sets import LayoutSets
from planner.search.layout_costs import LayoutCosts
from planner.search.routed import exchange_times, experts_of
from planner.search.strategies import StrategySets
from planner.solve.problem import Floats

__all__ = ["MeshTools"]


@dataclass(frozen=True, slots=True, eq=False)
class MeshTools:
    """Costs, strategies and layout sets of a mesh.

    boxing_once_s: matrices of seconds from each layout of a value to each that is needed, once (planner.search.formulation.boxing_matrices).
    """

    costs: LayoutCosts
    strategies: StrategySets
    layout_sets: LayoutSets
    boxing_once_s: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster, mesh: tuple[int, ...]) -> MeshTools:
        """Of a mesh about which nothing is known yet."""
        return cls(LayoutCosts(cluster, mesh), StrategySets(mesh), LayoutSets(mesh))

    @classmethod
    def at_load(cls, cluster: Cluster, mesh: tuple[int, ...], graph: LogicalGraph, load: ExpertLoad) -> MeshTools:
        """Of one graph, whose experts are priced at the quantile of their load."""
        exchanged = exchange_times(graph, experts_of(graph, load), mesh, load)
        return cls(LayoutCosts(cluster, mesh, exchanged=exchanged), StrategySets(mesh), LayoutSets(mesh))
