"""What searches share: worked out once, and looked up by value, so that a search of another cluster, shape or size begins with it.

prices of layouts         by cluster and mesh; strategies and layout sets by mesh alone, seconds of ops by device and mesh       -> SearchMemory.tools()
parts of ops              by what they are parts of; seconds of them by device
graphs of other sizes     by the two graphs that are traced, and the sizes                                                      -> SearchMemory.scaled()
pieces of a model         by its graph                                                                                          -> SearchMemory.pieces()
cuts of a model           by its graph, the cut and the device                                                                  -> SearchMemory.cut()
graphs with stages        by the graph, the stages and what is recomputed                                                       -> SearchMemory.staged()
what is recomputed        by the graph, what is asked for, and the device                                                       -> SearchMemory.again()
choices of layouts        by the Plan that was made of them; of the latest Plans alone                                         -> SearchMemory.decided()
bounds of shapes          by what was asked for; of the latest searches alone                                               -> SearchMemory.bounds_of()
proofs of Plans           by the program, as an object; the latest alone                                                    -> SearchMemory.of_program()

Equal graphs have one number, by which all this is kept: to compare two that differ takes a moment, to read either through a quarter of a second.

Nothing of this depends on what was searched before, so a search that begins with it finds what a search without it finds; but a long model's
begins with what was proven of shapes (planner.parallelism.proven), and with the choice that was taken last for one, and may find another plan within
its gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from planner.cost import op_work_s
from planner.ir.cluster import Cluster, DeviceSpec
from planner.ir.graph import LogicalGraph
from planner.ir.plan import Plan
from planner.ir.text import content_id
from planner.lower.build import Recipe
from planner.parallelism.proven import ProvenShapes
from planner.search.bounds.pieces import ModelPiece, model_pieces
from planner.search.bounds.scaled import scaled_graph, scaled_pieces
from planner.search.formulation import LayoutSets, MeshTools
from planner.search.layout_costs import LayoutCosts, PartsS
from planner.search.model import Taken
from planner.search.strategies import OpParts, StrategySet, StrategySets
from planner.solve.problem import Floats
from planner.stages import Staged
from planner.stages.recompute import OpsAgain, ops_again

__all__ = ["CutParts", "Decided", "KnownOfGraph", "SearchMemory", "again_of"]

_LATEST = 16
"""So many graphs are known by identity beside the first of each content."""
_LATEST_PLANS = 4
_LATEST_SEARCHES = 8
_Mesh = tuple[int, ...]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class CutParts(NamedTuple):
    """What the bounds of shapes know of a cut into stages (planner.parallelism.bounds).

    first: how many blocks of each piece lie whole on the first stage.   leaving: of how many of these another stage reads something.
    stages: of each, the blocks of every piece, and seconds of the rest, of all samples on one device.
    """

    first: tuple[int, ...]
    leaving: tuple[int, ...]
    stages: Sequence[tuple[tuple[int, ...], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOfGraph:
    """again: by what is asked for.   pieces: by the ops that are recomputed."""

    graph: LogicalGraph
    again: Mapping[str, OpsAgain]
    pieces: Mapping[frozenset[str], tuple[ModelPiece, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decided:
    """What a Plan was made of.

    plan: as it was lowered, by the recipe, of what was taken.   live_bytes: per rank, what it holds at most in a dry run without prices; None: not
    known.
    """

    plan: Plan
    recipe: Recipe
    taken: Taken
    live_bytes: Mapping[int, int] | None = None


@dataclass(slots=True)
class SearchMemory:
    """What several searches share.  It grows with what was searched; give it to searches of one program.

    latest: of the Plans that were made or asked about last; the latest stands last.
    """

    _tools: dict[tuple[Cluster, _Mesh], MeshTools] = field(default_factory=dict)
    _sets: dict[_Mesh, tuple[StrategySets, LayoutSets]] = field(default_factory=dict)
    _ops_s: dict[tuple[DeviceSpec, _Mesh], dict[StrategySet, Floats]] = field(default_factory=dict)
    _parts: OpParts = field(default_factory=OpParts)
    _parts_s: dict[DeviceSpec, PartsS] = field(default_factory=dict)
    _pieces: dict[tuple[int, frozenset[str]], tuple[ModelPiece, ...]] = field(default_factory=dict)
    _scaled_pieces: dict[tuple[int, int, int], tuple[object, object, tuple[ModelPiece, ...] | None]] = field(default_factory=dict)
    """By the identity of the pieces at two sizes, which are held, and the samples of the third."""
    _cuts: dict[tuple[int, tuple[int, int, str], DeviceSpec], CutParts] = field(default_factory=dict)
    _again: dict[tuple[int, str, DeviceSpec], OpsAgain] = field(default_factory=dict)
    _staged: dict[tuple[object, ...], Staged] = field(default_factory=dict)
    _scaled: dict[tuple[int, int, int], LogicalGraph | None] = field(default_factory=dict)
    _graphs: list[LogicalGraph] = field(default_factory=list)
    """The first graph of each content, by its number."""
    _latest: dict[int, tuple[LogicalGraph, int]] = field(default_factory=dict)
    """The graphs asked about last, with their numbers, by id(); they are held so that no other graph gets the same id()."""
    _made_by_scaling: set[int] = field(default_factory=set)
    """Numbers of graphs."""
    _ids: dict[int, str] = field(default_factory=dict)
    """Number -> the graph's content id; of a scaled one, what it was scaled from, and to what."""
    latest: list[Decided] = field(default_factory=list)
    _of_program: tuple[object, Any] | None = None
    _searches: list[ProvenShapes] = field(default_factory=list)

    def tools(self, cluster: Cluster, mesh: tuple[int, ...]) -> MeshTools:
        """The costs, strategies and layout sets of a mesh, as build_model takes them."""
        sets = _once(self._sets, mesh, lambda: (StrategySets(mesh, self._parts), LayoutSets(mesh)))
        ops_s, parts_s = self._ops_s.setdefault((cluster.device, mesh), {}), self._parts_s.setdefault(cluster.device, {})
        return _once(self._tools, (cluster, mesh), lambda: MeshTools(LayoutCosts(cluster, mesh, ops_s, parts_s=parts_s), *sets))

    def number(self, graph: LogicalGraph) -> int:
        """The number of the graph, which it has in common with equal ones."""
        known = self._latest.get(id(graph))
        if known is not None:
            return known[1]
        number = next((n for n, first in enumerate(self._graphs) if self._is_equal(n, first, graph)), len(self._graphs))
        if number == len(self._graphs):
            self._graphs.append(graph)
        return self._note(graph, number)

    def _note(self, graph: LogicalGraph, number: int) -> int:
        while len(self._latest) >= _LATEST:
            del self._latest[next(iter(self._latest))]
        self._latest[id(graph)] = graph, number
        return number

    def _is_equal(self, number: int, first: LogicalGraph, graph: LogicalGraph) -> bool:
        if first is graph:
            return True
        if number in self._made_by_scaling:
            return False  # its factors are not right
        # 1, 1.0 and True are equal, and are not the same as a literal: content ids tell them apart.
        return len(first.ops) == len(graph.ops) and first == graph and self._id_of(number) == content_id(graph)

    def graph_id(self, graph: LogicalGraph) -> str:
        """The graph's content id; of a scaled one, what it was scaled from, and to what."""
        return self._id_of(self.number(graph))

    def learn_id(self, graph: LogicalGraph, graph_id: str) -> None:
        """Take the content id of a graph from who has worked it out."""
        self._ids.setdefault(self.number(graph), graph_id)

    def _id_of(self, number: int) -> str:
        return _once(self._ids, number, lambda: content_id(self._graphs[number]))

    def scaled(self, one: LogicalGraph, two: LogicalGraph, samples: tuple[int, int], wanted: int) -> LogicalGraph | None:
        """planner.search.bounds.scaled.scaled_graph: only its sizes are right."""
        key = self.number(one), self.number(two), wanted
        return _once(self._scaled, key, lambda: self._numbered(scaled_graph(one, two, samples, wanted), key))

    def _numbered(self, graph: LogicalGraph | None, key: tuple[int, int, int]) -> LogicalGraph | None:
        """A scaled graph, with a number of its own: a traced one of that size may have other factors."""
        if graph is not None:
            number = self._note(graph, len(self._graphs))
            self._graphs.append(graph)
            self._made_by_scaling.add(number)
            self._ids[number] = f"graph {key[0]}, graph {key[1]} at {key[2]} samples"
        return graph

    def of_graph(self, graph: LogicalGraph, asked: Sequence[str], cluster: Cluster) -> KnownOfGraph:
        """What bounds need to know of a graph, for another process (``learn``).   asked: what is recomputed (``again``)."""
        again = {one: self.again(graph, one, cluster) for one in asked}
        pieces = {ops: self.pieces(graph, recompute=ops) for ops in (one.ops for one in again.values())}
        return KnownOfGraph(graph=graph, again=again, pieces=pieces)

    def learn(self, known: KnownOfGraph, cluster: Cluster) -> None:
        """Take what another process has found out of a graph."""
        number = self.number(known.graph)
        self._again |= {(number, asked, cluster.device): again for asked, again in known.again.items() if asked}
        self._pieces |= {(number, ops): pieces for ops, pieces in known.pieces.items()}

    def learn_pieces(self, graph: LogicalGraph, recompute: frozenset[str], pieces: tuple[ModelPiece, ...]) -> None:
        """Take the pieces of a graph from who has worked them out; floating-point factors in them may be others."""
        self._pieces.setdefault((self.number(graph), recompute), pieces)

    def pieces(self, graph: LogicalGraph, *, recompute: frozenset[str]) -> tuple[ModelPiece, ...]:
        """The distinct pieces of a traced step (planner.search.bounds.pieces.model_pieces)."""
        return _once(self._pieces, (self.number(graph), recompute), lambda: model_pieces(graph, recompute=recompute))

    def scaled_pieces(
        self, one: tuple[ModelPiece, ...], two: tuple[ModelPiece, ...], samples: tuple[int, int], wanted: int
    ) -> tuple[ModelPiece, ...] | None:
        """planner.search.bounds.scaled.scaled_pieces, of pieces of this memory."""
        key = id(one), id(two), wanted
        return _once(self._scaled_pieces, key, lambda: (one, two, scaled_pieces(one, two, samples, wanted)))[2]

    def cut(self, key: tuple[LogicalGraph, tuple[int, int, str], DeviceSpec], make: Callable[[], CutParts]) -> CutParts:
        """The parts of a graph's cut.   key: with the stages of the cut."""
        graph, cut, device = key
        return _once(self._cuts, (self.number(graph), cut, device), make)

    def again(self, graph: LogicalGraph, asked: str, cluster: Cluster) -> OpsAgain:
        """The ops that the backward part computes again (again_of)."""
        return (
            _once(self._again, (self.number(graph), asked, cluster.device), lambda: again_of(graph, asked, cluster))
            if asked
            else OpsAgain()
        )

    def of_program(self, program: object, make: Callable[[], _Value]) -> _Value:
        """What the caller keeps of this very program."""
        if self._of_program is None or self._of_program[0] is not program:
            self._of_program = program, make()
        kept: _Value = self._of_program[1]
        return kept

    def keep_bounds(self, search: ProvenShapes) -> None:
        """Remember what a search has proven of its shapes."""
        self._searches = [*self._searches[1 - _LATEST_SEARCHES :], search]

    def bounds_of(self, asked: object) -> Sequence[ProvenShapes]:
        """What searches of the same have proven, the latest last.   asked: all on which it depends beside the cluster."""
        return [search for search in self._searches if search.asked == asked]

    def decide(self, decided: Decided) -> None:
        """Remember a Plan and what it was made of; the oldest of too many is forgotten."""
        self.latest = [*self.latest[1 - _LATEST_PLANS :], decided]

    def decided(self, plan: Plan, cluster: Cluster) -> Decided | None:
        """What a Plan was made of, where a search on the cluster with this memory has made it; more may stand in its options since."""
        for known in reversed(self.latest):
            is_his = known.plan.tasks is plan.tasks and known.plan.streams is plan.streams and known.plan.regsts is plan.regsts
            if is_his and known.taken.model.costs.cluster == cluster and known.recipe.options.items() <= plan.options.items():
                self.latest.remove(known)
                self.latest.append(known)
                return known
        return None

    def decided_for(self, staged: Staged) -> Iterator[Decided]:
        """What Plans of a graph in stages were made of, the latest first."""
        return (known for known in reversed(self.latest) if known.taken.model.staged is staged)

    def staged(self, key: tuple[object, ...], make: Callable[[], Staged]) -> Staged:
        """A graph with its stages.   key: the graph's number, and everything else that ``make`` depends on."""
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
