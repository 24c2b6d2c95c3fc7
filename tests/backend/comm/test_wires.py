"""Groups of torch.distributed: made by all ranks in one order, by NCCL at once and not in the first collective.

torch.distributed is a stub here: what is proven is the order of calls and their arguments; that NCCL does what they say is a GPU's to show.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from matrix import read_plan

from backend.comm.nccl_double import NcclDouble
from backend.comm.wires import GroupWire, StagedWire
from backend.devices.device import Device
from backend.placing.carriers import carriers
from backend.worker.rank import axis_groups
from planner.ir.actors.communicators import communicators
from tests.backend.comm.test_nccl_double import on_ranks

PLAN = read_plan("gpt", "pipeline2_data2_tensor2", "fp32")
Calls = list[tuple[str, tuple[int, ...], str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was asked of torch.distributed: (call, ranks, backend)."""
    seen: Calls = []

    def new_group(ranks: list[int], *, backend: str, **options: object) -> object:
        seen.append(("new_group", tuple(ranks), backend))
        return SimpleNamespace(ranks=tuple(ranks), backend=backend)

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "get_backend", lambda group: group.backend)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op=None, group=None: seen.append(("all_reduce", group.ranks, group.backend)))
    return seen


def made_by(rank: int, devices: dict[int, str], calls: Calls) -> tuple[Calls, set[type]]:
    """(calls of this rank, kinds of its wires); the device's tensors lie on the host."""
    calls.clear()
    device: Device = SimpleNamespace(torch_device=torch.device("cpu"))  # type: ignore[assignment]
    wires = axis_groups(PLAN, rank, 10.0, carriers(PLAN, devices, has_nccl=True), device)
    return list(calls), {type(wire) for wire in wires.values()}


def test_every_rank_makes_all_groups_in_one_order_and_connects_its_own_at_once(calls: Calls) -> None:
    devices = {rank: f"cuda:{rank}" for rank in range(8)}
    wanted = [each.ranks for each in communicators(PLAN) if each.axis is not None]
    connected = {}
    for rank in range(8):
        made, kinds = made_by(rank, devices, calls)
        assert [ranks for call, ranks, _ in made if call == "new_group"] == wanted
        assert {backend for _, _, backend in made} == {"nccl"} and kinds == {GroupWire}
        connected[rank] = [ranks for call, ranks, _ in made if call == "all_reduce"]
        assert connected[rank] == [ranks for ranks in wanted if rank in ranks]
        # A group's connections are made before the next group is asked for.
        assert all(made[place - 1][:2] == ("new_group", ranks) for place, (call, ranks, _) in enumerate(made) if call == "all_reduce")
    # In these orders nobody waits for ever, by NCCL's rules.
    double = NcclDouble(8, wanted)
    places = {rank: [place for place, ranks in enumerate(wanted) if rank in ranks] for rank in range(8)}
    assert on_ranks(lambda rank: [double.create(rank, place) for place in places[rank]] and None, 8) == []


def test_where_ranks_share_a_gpu_groups_are_gloos_and_nothing_is_connected(calls: Calls) -> None:
    made, _ = made_by(0, {rank: f"cuda:{rank // 2}" for rank in range(8)}, calls)
    shared = {ranks for call, ranks, backend in made if call == "new_group" and backend == "gloo"}
    assert shared == {ranks for _, ranks, _ in made if len({rank // 2 for rank in ranks}) < len(ranks)}
    assert [ranks for call, ranks, _ in made if call == "all_reduce"] == [
        ranks for call, ranks, backend in made if call == "new_group" and backend == "nccl" and 0 in ranks
    ]


def test_gloo_under_the_blocks_of_a_gpu_is_staged_through_the_host(calls: Calls) -> None:
    device: Device = SimpleNamespace(torch_device=torch.device("meta"))  # type: ignore[assignment]
    carried = carriers(PLAN, dict.fromkeys(range(8), "cuda:0"), has_nccl=True)
    assert {type(wire) for wire in axis_groups(PLAN, 0, 10.0, carried, device).values()} == {StagedWire}
