"""The routes of values from their producers to their readers, as an assignment carries them."""

from __future__ import annotations

import pytest
from matrix import program, roomy_cluster

from planner.ir.plan import Boxing
from planner.ir.sbp import NdSbp
from planner.search import build_model, find_layouts
from planner.search.routes import StageTransfer
from planner.stages import assign_stages, prepare


@pytest.mark.parametrize(("model", "num_stages", "mesh"), [("mlp", 1, (2, 2)), ("mlp", 2, (2,)), ("convnet", 2, (2,))])
def test_every_route_leads_from_what_the_producer_makes_to_what_the_reader_wants(
    model: str, num_stages: int, mesh: tuple[int, ...]
) -> None:
    graph = program(model).graph(2)
    staged = prepare(graph, assign_stages(graph, num_stages, ()), num_stages)
    chosen = find_layouts(build_model(staged, mesh, roomy_cluster(4), (), 2)).assignment()
    producers = graph.producers() | staged.graph.producers()
    lengths = set()
    for op in staged.graph.ops:
        for value in op.inputs:
            wanted, stage = chosen.ops[op.id].inputs[op.inputs.index(value)], staged.stage[op.id]
            if value not in producers and value not in chosen.states:
                assert (value, stage, wanted) not in chosen.routes  # batch inputs and constants are there in any layout
                continue
            if value in producers:
                maker = producers[value]
                here, sbp = staged.stage[maker.id], chosen.ops[maker.id].outputs[maker.outputs.index(value)]
                sbp = sbp if sbp is not None else NdSbp.broadcast(len(mesh))
            else:
                here, sbp = staged.state_stage(value), chosen.states[value]
            route = chosen.routes[value, stage, wanted]
            for move in route:
                if isinstance(move, StageTransfer):
                    assert (move.src_stage, move.dst_stage) == (here, stage)
                    assert not sbp.has_partial  # sums are reduced before they travel
                    here, sbp = stage, move.dst
                else:
                    assert isinstance(move, Boxing)
                    assert move.src == sbp
                    sbp = move.dst
            assert (here, sbp) == (stage, wanted)
            lengths.add(len(route))
    assert max(lengths) >= 1
