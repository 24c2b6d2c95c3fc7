"""A worker's part of a Session: it performs the steps that are allowed, reports losses, and reads or writes state between steps."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from backend.acts.act import Batches
from backend.acts.step_inputs import StepNumbers
from backend.checkpoint.handover import take_over
from backend.comm.channel import Channel, Message, connect
from backend.layout.sharding import slice_part
from backend.memory.blocks import Blocks, state_parts
from backend.run_folder.files import Failure, FailureKind
from backend.run_folder.outcome import copied
from backend.worker.loop import EventLoop
from backend.worker.rank import RankBody
from planner.ir.plan import Plan

__all__ = ["LiveWorker", "live_batches", "live_numbers"]


def live_batches(folder: Path) -> Batches:
    """Step -> its batch, from the file that the session wrote before it allowed the step; the last batch read stays open."""
    last_read: dict[int, tuple[Tensor, ...]] = {}

    def batch(step: int) -> tuple[Tensor, ...]:
        tensors = last_read.get(step)
        if tensors is None:
            tensors = tuple(torch.load(folder / f"batch{step}.pt", mmap=True, weights_only=True))
            last_read.clear()  # the micro-batches of a step come one after the other
            last_read[step] = tensors
        return tensors

    return batch


def live_numbers(folder: Path) -> StepNumbers:
    """Step -> its numbers, from the file that the session wrote before it allowed the step."""

    def numbers(step: int) -> Mapping[str, float]:
        number_of: dict[str, float] = json.loads((folder / f"numbers{step}.json").read_text())
        return number_of

    return numbers


class LiveWorker:
    """Does what the session asks for."""

    def __init__(self, plan: Plan, rank: int, run_id: str, key: bytes, folder: Path, loop: EventLoop, blocks: Blocks) -> None:
        self._plan, self._rank, self._folder = plan, rank, folder
        self._loop, self._blocks = loop, blocks
        self._channel: Channel = connect(run_id, key)

    def start(self, body: RankBody) -> None:
        body.on_loss = lambda step, loss: self._channel.send(message="loss", step=step, loss=loss)
        body.on_output = lambda step: self._channel.send(message="output", step=step)
        self._channel.send(message="ready", rank=self._rank)
        self._channel.start_receiving(self._handle)

    def _handle(self, message: Message) -> None:
        try:
            self._do(message)
        except Exception as error:
            cause = f"{message['message']} between steps: {type(error).__name__}: {error}"
            self._loop.fail(Failure(rank=self._rank, kind=FailureKind.RAISED, message=cause, traceback=traceback.format_exc()))

    def _do(self, message: Message) -> None:
        match message["message"]:
            case "allow":
                self._loop.allow(message["steps"], final=message["final"])
            case "pause":
                if self._loop.wait_idle():
                    self._channel.send(message="done", number=message["number"])
            case "read":
                parts = {
                    (entry.regst, entry.index): self._blocks.state_of(entry.regst, entry.index)
                    for entry in self._plan.states
                    if entry.name in message["names"] and self._holds(entry.regst)
                }
                torch.save(copied(parts), self._folder / f"read{message['number']}.{self._rank}.pt")
                self._channel.send(message="done", number=message["number"])
            case "load":
                self._load(self._folder / message["folder"])
                self._channel.send(message="done", number=message["number"])
            case "write":
                self._write(torch.load(self._folder / message["file"], mmap=True, weights_only=True))
                self._channel.send(message="done", number=message["number"])

    def _load(self, folder: Path) -> None:
        with torch.no_grad():
            for (regst, index), part in state_parts(self._plan, self._rank, take_over(folder)):
                self._blocks.state_of(regst, index).copy_(part)

    def _holds(self, regst: str) -> bool:
        return self._rank in self._plan.ranks_holding(regst)

    def _write(self, values: Mapping[str, Tensor]) -> None:
        for entry in self._plan.states:
            if entry.given_as not in values or not self._holds(entry.regst):
                continue
            regst = self._plan.regst[entry.regst]
            placement = self._plan.placement[regst.placement]
            part = slice_part(values[entry.given_as], regst.tensors[entry.index].sbp, placement.mesh, placement.coordinate(self._rank))
            with torch.no_grad():
                self._blocks.state_of(entry.regst, entry.index).copy_(part)
