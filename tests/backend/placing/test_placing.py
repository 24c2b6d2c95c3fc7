"""Where ranks lie: devices by index, and what carries each communicator; bad wishes are refused before anything starts."""

from __future__ import annotations

import threading
import time

import handmade
import pytest
import torch
from matrix import read_plan

from backend.comm.nccl_double import NcclDouble
from backend.comm.wires import StagedWire
from backend.devices.fake import FakeRuntime, FakeStreamDevice
from backend.placing.carriers import Carrier, carriers
from backend.placing.places import FAKE_DEVICES, place_ranks
from backend.worker.lanes import LaunchTurns, RankLanes, collectives_of
from planner.ir.errors import Unsupported, WorkerFailed
from planner.ir.plan import Fragment, TaskKind
from planner.ir.sbp import ReduceOp

HERE = {"cuda": 4, "fake": FAKE_DEVICES}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cpu", ["cpu", "cpu"]),
        ("cuda", ["cuda:0", "cuda:1"]),
        ("cuda:3", ["cuda:3", "cuda:3"]),
        ("1=cuda,0=cuda:2", ["cuda:2", "cuda:0"]),
        ("0=cpu,1=cuda:1", ["cpu", "cuda:1"]),
        ("fake", ["fake:0", "fake:1"]),
    ],
)
def test_a_rank_is_on_the_device_of_its_index_unless_it_is_named(text: str, names: list[str]) -> None:
    assert list(place_ranks(text, 2, HERE).values()) == names


@pytest.mark.parametrize(
    ("text", "ranks", "says"),
    [
        ("cuda", 5, r"the plan has 5 ranks, and this host 4 cuda devices; name each rank's to let some share one, as in 0=cuda:0,1=cuda:1"),
        ("fake", 9, "the plan has 9 ranks, and this host 8 fake devices"),
        ("cuda:4", 2, "device cuda:4 of rank 0: this host has 4 cuda devices, numbered from 0"),
        ("0=cuda:0,1=cuda:9", 2, "device cuda:9 of rank 1"),
        ("tpu", 2, "'tpu' is not known"),
        ("0=cuda:0", 2, r"leaves out ranks \[1\]"),
        ("cuda:-1", 2, "is not known"),
        ("0=cuda:0,0=cuda:1", 2, "write RANK=DEVICE once"),
    ],
)
def test_more_ranks_than_devices_and_devices_that_are_not_there_are_refused(text: str, ranks: int, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        place_ranks(text, ranks, HERE)


def test_a_host_without_gpus_says_so() -> None:
    with pytest.raises(Unsupported, match="the plan has 2 ranks, and this host 0 cuda devices; plan for as many, or use --device cpu"):
        place_ranks("cuda", 2, {"cuda": 0, "fake": 8})


def test_what_carries_a_communicator_follows_from_its_devices() -> None:
    plan = handmade.data_parallel(2, 2)

    def by(first: str, second: str, *, has_nccl: bool = True) -> tuple[Carrier, str, bool]:
        (carried,) = carriers(plan, {0: first, 1: second}, has_nccl=has_nccl).values()
        return carried.carrier, carried.why, carried.in_order

    assert by("cpu", "cpu") == (Carrier.GLOO, "", False)
    assert by("cuda:0", "cuda:1") == (Carrier.NCCL, "", True)
    assert by("cuda:1", "cuda:1") == (Carrier.GLOO, "ranks [0, 1] share cuda:1, and NCCL refuses two ranks of one device", False)
    assert by("cuda:0", "cuda:1", has_nccl=False) == (Carrier.GLOO, "this torch has no NCCL", False)
    assert by("fake:0", "fake:1") == (Carrier.GLOO, "devices without hardware have no NCCL", True)
    for mixed in (("cpu", "cuda:0"), ("fake:0", "cuda:0")):
        with pytest.raises(Unsupported, match=rf"ranks 0 on {mixed[0]}, 1 on cuda:0 meet in collectives"):
            by(*mixed)


def test_stages_on_different_kinds_of_device_have_carriers_of_their_own() -> None:
    plan = read_plan("gpt", "pipeline2_data2_tensor2", "fp32")
    devices = {rank: f"cuda:{rank}" if rank < 4 else "cpu" for rank in range(8)}
    for communicator, carried in carriers(plan, devices, has_nccl=True).items():
        assert carried.carrier is (Carrier.NCCL if max(communicator.ranks) < 4 else Carrier.GLOO)


def test_threads_of_a_rank_launch_collectives_in_one_order_whatever_comes_first() -> None:
    plan = read_plan("gpt", "pipeline2_data2_tensor2", "fp32")
    order = collectives_of(plan, 0)
    turns, launched = LaunchTurns(order, 20.0), []

    def stream(task: str) -> None:
        of_task = plan.task[task]
        for number in range(2 * of_task.acts):  # two steps
            with turns.turn(of_task, number):
                launched.append((task, number % of_task.acts))

    threads = [threading.Thread(target=stream, args=(task,)) for task in sorted({launch.task for launch in order}, reverse=True)]
    for thread in threads:
        thread.start()
        time.sleep(0.001)
    for thread in threads:
        thread.join(20)
    assert launched == [(launch.task, launch.act) for launch in order] * 2 and turns.launched == 2 * len(order)


@pytest.mark.parametrize("planted", [False, True])
def test_one_thread_of_a_worker_launches_what_computes_so_libraries_keep_what_was_counted(
    planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any thread performs an act of any stream; were it to launch, too, cuBLAS would keep a workspace per thread and stream."""
    if planted:
        monkeypatch.setattr(TaskKind, "is_compute", property(lambda self: False))
    runtime, plan = FakeRuntime(), handmade.data_parallel(1, 2)
    lanes = RankLanes(plan, 0, FakeStreamDevice(runtime=runtime))
    tasks = [task for task in plan.tasks if isinstance(task.body, Fragment)]
    done = [lanes.perform(task, lambda: 1) for task in tasks]
    threads = [threading.Thread(target=lambda: done.append(lanes.perform(tasks[0], lambda: 2))) for _ in range(4)]
    for thread in threads:
        thread.start()
    gone = [thread.join(20) for thread in threads]
    lanes.close()
    runtime.close()
    assert len(done) == len(tasks) + len(gone)
    launching = {thread for thread, _ in runtime.workspaces}
    assert (len(launching) == 1) == (not planted)


def test_a_turn_that_never_comes_names_what_stands_first() -> None:
    plan = handmade.data_parallel(2, 2)
    order = collectives_of(plan, 0)
    last = plan.task[order[-1].task]
    with (
        pytest.raises(WorkerFailed, match=rf"{last.id} waited 0.05 s for its turn to launch; {order[0].task} act 0"),
        LaunchTurns(order, 0.05).turn(last, order[-1].act),
    ):
        pass


def test_a_staged_wire_carries_the_same_values() -> None:
    """Copies between two memories are a GPU's to show: make gpu."""
    staged, held = StagedWire(NcclDouble(1, [(0,)]).create(0, 0)), torch.ones(4)
    staged.all_reduce(held, ReduceOp.SUM)
    gathered, received, reduced = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    staged.all_gather(gathered, held)
    staged.all_to_all(received, held, [4], [4])
    staged.reduce_scatter(reduced, held, ReduceOp.SUM)
    assert staged.scatters and all(torch.equal(each, held) for each in (gathered, received, reduced))
