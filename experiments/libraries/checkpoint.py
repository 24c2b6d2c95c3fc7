"""Our checkpoints beside torch.distributed.checkpoint with a planner of the same shares: ``python -m experiments.libraries.checkpoint``.

Two gloo ranks save the state of one GPT (data parallel: each writes half) in turns, through files that are on the disk when the save ends;
then one process loads whole tensors and a quarter of each, and loads a file in which one byte was altered.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as library
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, metadata, planner
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

import regista
from backend.checkpoint import Saved, SaveRequest, latest, verify
from backend.checkpoint.saver import Saver
from backend.checkpoint.shares import Share, shares
from backend.initial.values import Box, whole_box
from backend.layout.views import box_view
from backend.memory.blocks import initial_states
from planner.ir.errors import InvalidFile
from planner.ir.files import load_plan, save_plan
from planner.ir.plan import Plan
from planner.lower.data_actors.saving import with_saving
from regista.api import program_of

__all__ = ["main"]

MODEL = "zoo:gpt?layers=4&width=256&heads=8&vocab=2048&batch=8&seq=128"
SAVES, LOADS = 8, 5


class _SavePlanner(planner.SavePlanner):  # type: ignore[misc]
    """Writes the same boxes as our savers."""

    def __init__(self, plan: Plan, rank: int, values: dict[str, Tensor]) -> None:
        self._work, self._rank, self._values, self._plan = shares(plan), rank, values, plan

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None: ...

    def create_local_plan(self) -> planner.SavePlan:
        return planner.SavePlan([self._item(share) for share in self._work if share.rank == self._rank])

    def create_global_plan(self, all_plans: Any) -> Any:
        tensors: dict[str, Any] = {}
        for data, name in ((self._item(share).tensor_data, share.state.name) for share in self._work):
            tensors.setdefault(name, metadata.TensorStorageMetadata(data.properties, data.size, [])).chunks.append(data.chunk)
        return all_plans, metadata.Metadata(tensors)

    def finish_plan(self, new_plan: planner.SavePlan) -> planner.SavePlan:
        return new_plan

    def resolve_data(self, write_item: Any) -> Tensor:
        return self._values[write_item.index.fqn]

    def _item(self, share: Share) -> planner.WriteItem:
        tensor, chunk = self._plan.regst[share.state.regst].tensors[share.state.index], _chunk(share.box)
        data = planner.TensorWriteData(chunk, metadata.TensorProperties(dtype=getattr(torch, tensor.dtype.value)), torch.Size(tensor.shape))
        return planner.WriteItem(metadata.MetadataIndex(share.state.name, chunk.offsets), planner.WriteItemType.SHARD, tensor_data=data)


class _LoadPlanner(planner.LoadPlanner):  # type: ignore[misc]
    """Reads one box of each tensor."""

    def __init__(self, boxes: dict[str, Box]) -> None:
        self._boxes = boxes

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        self._values, self._metadata = state_dict, metadata

    def create_local_plan(self) -> planner.LoadPlan:
        tensors = self._metadata.state_dict_metadata
        return planner.LoadPlan(
            [item for name, box in self._boxes.items() for item in create_read_items_for_chunk_list(name, tensors[name], [_chunk(box)])]
        )

    def create_global_plan(self, global_plan: Any) -> Any:
        return global_plan

    def finish_plan(self, central_plan: Any) -> Any:
        return central_plan

    def load_bytes(self, read_item: Any, value: Any) -> None: ...

    def resolve_tensor(self, read_item: Any) -> Tensor:
        return box_view(self._values[read_item.dest_index.fqn], tuple(zip(read_item.dest_offsets, read_item.lengths, strict=True)))

    def commit_tensor(self, read_item: Any, tensor: Tensor) -> None: ...


def _chunk(box: Box) -> metadata.ChunkStorageMetadata:
    return metadata.ChunkStorageMetadata(torch.Size([offset for offset, _ in box]), torch.Size([length for _, length in box]))


def _rank(folder: Path) -> None:
    """One of the two that save."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, plan = dist.get_rank(), with_saving(load_plan(str(folder / "plan.json")))
    parts = initial_states(plan, rank, program_of(MODEL).initial_state(1))
    values = {share.state.name: parts[share.state.regst, share.state.index] for share in shares(plan) if share.rank == rank}
    store = PrefixStore("saves", dist.distributed_c10d._get_default_store())

    def ours(number: int) -> None:
        saver = Saver(plan, rank, SaveRequest(folder=str(folder / "ours")), store, run_id="measured", first_step=number)
        saver.end(number + 1, lambda regst, index: parts[regst, index])

    def theirs(number: int) -> None:
        writer = FileSystemWriter(folder / f"library{number}", sync_files=True, overwrite=False)
        library.save({}, storage_writer=writer, planner=_SavePlanner(plan, rank, values))

    for save in (ours, theirs):
        wall_s, cpu_s = [], []
        for number in range(SAVES):
            dist.barrier()
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            save(number)
            dist.barrier()
            wall_s.append(time.perf_counter() - begin_s)
            cpu_s.append(time.process_time() - begin_cpu_s)
        if rank == 0:
            print(f"save, {save.__name__}: {_shown(wall_s[1:])}; processor time of rank 0: {_shown(cpu_s[1:])}", flush=True)
    os._exit(0)


def _shown(times_s: list[float]) -> str:
    return f"{statistics.median(times_s) * 1e3:.0f} ms ({min(times_s) * 1e3:.0f} to {max(times_s) * 1e3:.0f})"


def _load(folder: Path, state: dict[str, Tensor], parts: int) -> None:
    boxes = {name: _first_part(tuple(value.shape), parts) for name, value in state.items()}
    saved, loaded = Saved(str(latest(folder / "ours"))), {}

    def theirs() -> None:
        loaded.update({name: torch.empty([n for _, n in box], dtype=state[name].dtype) for name, box in boxes.items()})
        _library_load(folder / "library0", loaded, boxes)

    ours: Callable[[], object] = lambda: [saved.part(name, box) for name, box in boxes.items()]  # noqa: E731
    for name, load in (("ours", ours), ("theirs", theirs)):
        times_s = []
        for _ in range(LOADS):
            begin_s = time.perf_counter()
            load()
            times_s.append(time.perf_counter() - begin_s)
        print(f"load 1/{parts} of each tensor, {name}: {_shown(times_s[1:])}")
    assert all(torch.equal(value, saved.part(name, boxes[name])) for name, value in loaded.items())


def _first_part(shape: tuple[int, ...], parts: int) -> Box:
    return ((0, -(-shape[0] // parts)), *whole_box(shape[1:])) if shape else ()


def _library_load(folder: Path, values: dict[str, Tensor], boxes: dict[str, Box]) -> None:
    library.load(values, storage_reader=FileSystemReader(folder), planner=_LoadPlanner(boxes), no_dist=True)


def _alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def main() -> None:
    program = program_of(MODEL)
    state = program.initial_state(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_plan(regista.plan(program, "local:2", mesh=(2,), pins=["input.0=S(0)"], seconds=20), str(folder / "plan.json"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "experiments.libraries.checkpoint", name]
        ranks = [subprocess.Popen(command, env=os.environ | place | {"RANK": str(rank)}) for rank in range(2)]
        assert [process.wait() for process in ranks] == [0, 0]
        for parts in (1, 4):
            _load(folder, state, parts)
        newest = latest(folder / "ours")
        assert newest is not None
        _alter(newest / "rank0000.pt")
        _alter(folder / "library0" / "__0_0.distcp")
        try:
            verify(newest)
        except InvalidFile as error:
            print(f"one altered byte, ours: {error}")
        boxes = {key: whole_box(tuple(value.shape)) for key, value in state.items()}
        loaded = {key: torch.empty_like(value) for key, value in state.items()}
        _library_load(folder / "library0", loaded, boxes)
        wrong = [key for key, value in state.items() if not torch.equal(loaded[key], value)]
        print(f"one altered byte, theirs: loads without a word; other values in {', '.join(wrong)}")


if __name__ == "__main__":
    if sys.argv[1:]:
        _rank(Path(sys.argv[1]))
    else:
        main()
