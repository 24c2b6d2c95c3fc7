"""What searches share: worked out once, and looked up by value, so that a search of another cluster, shape or size begins with it.

prices of layouts         by cluster and mesh; strategies and layout sets by mesh alone, seconds of ops by device and mesh       -> SearchMemory.tools()
graphs of other sizes     by the content of the two that are traced, and the sizes                                              -> SearchMemory.scaled()
pieces of a model         by the content of its graph                                                                           -> SearchMemory.pieces()
graphs with stages        by the content of the graph, the stages and what is recomputed                                        -> SearchMemory.staged()
what is recomputed        by the content of the graph, what is asked for, and the device                                        -> SearchMemory.again()

Nothing that is kept depends on what was searched before, so a search that begins with it finds what a search without it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from planner.cost import op_work_s
from planner.ir.cluster import Cluster, DeviceSpec
from planner.ir.graph import LogicalGraph
from planner.ir.text import content_id
from planner.search.bounds.pieces import ModelPiece, model_pieces
from planner.search.bounds.scaled import scaled_graph
from planner.search.formulation import LayoutSets, MeshTools
from planner.search.layout_costs import LayoutCosts
from planner.search.strategies import StrategySet, StrategySets
from planner.solve.problem import Floats
from planner.stages import Staged
from planner.stages.recompute import OpsAgain, ops_again

__all__ = ["KnownOfGraph", "SearchMemory", "again_of"]

_GRAPHS = 16
"""So many graphs are known by identity."""
_Mesh = tuple[int, ...]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOfGraph:
    """again: by what is asked for.   pieces: by the ops that are recomputed."""

    graph: LogicalGraph
    graph_id: str
    again: Mapping[str, OpsAgain]
    pieces: Mapping[frozenset[str], tuple[ModelPiece, ...]]


@dataclass(slots=True)
class SearchMemory:
    """What several searches share.  It grows with what was searched; give it to searches of one program."""

    _tools: dict[tuple[Cluster, _Mesh], MeshTools] = field(default_factory=dict)
    _sets: dict[_Mesh, tuple[StrategySets, LayoutSets]] = field(default_factory=dict)
    _ops_s: dict[tuple[DeviceSpec, _Mesh], dict[StrategySet, Floats]] = field(default_factory=dict)
    _pieces: dict[tuple[str, frozenset[str]], tuple[ModelPiece, ...]] = field(default_factory=dict)
    _again: dict[tuple[str, str, DeviceSpec], OpsAgain] = field(default_factory=dict)
    _staged: dict[tuple[object, ...], Staged] = field(default_factory=dict)
    _scaled: dict[tuple[str, str, int], LogicalGraph | None] = field(default_factory=dict)
    _ids: dict[int, tuple[LogicalGraph, str]] = field(default_factory=dict)
    """id(graph) -> the graph and its content id, of the latest graphs; holding a graph keeps its address from being used again."""

    def tools(self, cluster: Cluster, mesh: tuple[int, ...]) -> MeshTools:
        """The costs, strategies and layout sets of a mesh, as build_model takes them."""
        sets = _once(self._sets, mesh, lambda: (StrategySets(mesh), LayoutSets(mesh)))
        ops_s = self._ops_s.setdefault((cluster.device, mesh), {})
        return _once(self._tools, (cluster, mesh), lambda: MeshTools(LayoutCosts(cluster, mesh, ops_s), *sets))

    def graph_id(self, graph: LogicalGraph) -> str:
        """The graph's content id, which for a model of 96 layers takes a quarter of a second; of a scaled one, what it was scaled from, and to what."""
        known = self._ids.get(id(graph))
        return known[1] if known is not None else self._noted(graph, content_id(graph))

    def _noted(self, graph: LogicalGraph, graph_id: str) -> str:
        while len(self._ids) >= _GRAPHS:
            del self._ids[next(iter(self._ids))]
        self._ids[id(graph)] = graph, graph_id
        return graph_id

    def scaled(self, one: LogicalGraph, two: LogicalGraph, samples: tuple[int, int], wanted: int) -> LogicalGraph | None:
        """planner.search.bounds.scaled.scaled_graph: only its sizes are right."""
        key = self.graph_id(one), self.graph_id(two), wanted
        graph = _once(self._scaled, key, lambda: scaled_graph(one, two, samples, wanted))
        if graph is not None:
            self._noted(graph, f"{key[0]}, {key[1]} at {wanted} samples")
        return graph

    def of_graph(self, graph: LogicalGraph, asked: Sequence[str], cluster: Cluster) -> KnownOfGraph:
        """What bounds need to know of a graph, for another process (``learn``).   asked: what is recomputed (``again``)."""
        again = {one: self.again(graph, one, cluster) for one in asked}
        pieces = {ops: self.pieces(graph, recompute=ops) for ops in (one.ops for one in again.values())}
        return KnownOfGraph(graph=graph, graph_id=self.graph_id(graph), again=again, pieces=pieces)

    def learn(self, known: KnownOfGraph, cluster: Cluster) -> None:
        """Take what another process has found out of a graph."""
        self._noted(known.graph, known.graph_id)
        self._again |= {(known.graph_id, asked, cluster.device): again for asked, again in known.again.items() if asked}
        self._pieces |= {(known.graph_id, ops): pieces for ops, pieces in known.pieces.items()}

    def pieces(self, graph: LogicalGraph, *, recompute: frozenset[str]) -> tuple[ModelPiece, ...]:
        """The distinct pieces of a traced step (planner.search.bounds.pieces.model_pieces)."""
        return _once(self._pieces, (self.graph_id(graph), recompute), lambda: model_pieces(graph, recompute=recompute))

    def again(self, graph: LogicalGraph, asked: str, cluster: Cluster) -> OpsAgain:
        """The ops that the backward part computes again (again_of)."""
        return (
            _once(self._again, (self.graph_id(graph), asked, cluster.device), lambda: again_of(graph, asked, cluster))
            if asked
            else OpsAgain()
        )

    def staged(self, key: tuple[object, ...], make: Callable[[], Staged]) -> Staged:
        """A graph with its stages.   key: the graph's content id, and everything else that ``make`` depends on."""
        return _once(self._staged, key, make)


def again_of(graph: LogicalGraph, asked: str, cluster: Cluster) -> OpsAgain:
    """planner.stages.recompute.ops_again, each op at its price on one device.

    Raises:
        Unsupported: as there.
    """
    return ops_again(graph, asked, lambda op: op_work_s(cluster, op, {v: graph.values[v] for v in (*op.inputs, *op.outputs) if v}))


def _once(kept: dict[_Key, _Value], key: _Key, make: Callable[[], _Value]) -> _Value:
    if key not in kept:
        kept[key] = make()
    return kept[key]
