"""What the runtime of one process itself takes per act: a Plan whose acts do nothing.

python -m experiments.gpu.overhead     median and quartiles over rounds, on CPUs
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import quantiles

import torch
from torch import Tensor

from backend.acts.act import Batches
from backend.acts.step_inputs import no_numbers
from backend.devices.device import CpuDevice, Device, Work
from backend.inprocess.body import ProcessBody
from backend.inprocess.engine import Engine
from backend.inprocess.fragments import fragments_of
from backend.inprocess.registers import make_blocks
from backend.inprocess.rendezvous import JointAct
from backend.memory.blocks import state_parts
from planner.ir.plan import Plan, TaskKind

__all__ = ["idle_act_s", "main"]


class _Idle(ProcessBody):
    """Its acts look up their operands as always, and then nothing is done."""

    def bind(self, joint: JointAct) -> Work:
        super().bind(joint)
        actor, number, _ = joint[0]
        if actor.task.kind is TaskKind.FETCH:
            self.losses[number] = 0.0
        return _nothing


def _nothing() -> None:
    pass


def idle_act_s(plan: Plan, state: Mapping[str, Tensor], batches: Batches, devices: Mapping[int, Device], steps: int) -> float:
    """Seconds per act, from the first start to the last end, of ``steps`` steps of acts that do nothing."""
    blocks = make_blocks(plan, devices)
    for of_rank in blocks.values():
        of_rank.fill_state(state_parts(plan, of_rank.rank, state))
    fragments = {rank: fragments_of(plan, blocks[rank], devices[rank]) for rank in blocks}
    body = _Idle(plan, blocks, devices, batches, no_numbers, fragments, allow_nan=True)
    engine = Engine(plan, steps, body, blocks, devices, timeout_s=60.0, ahead=8)
    begin = time.perf_counter()
    engine.run()
    return (time.perf_counter() - begin) / sum(map(len, engine.rows.values()))


def main() -> None:
    """Print the figure for the four actors, which are a chain on two ranks and five streams."""
    from experiments.gpu.plans import four_actors

    plan, x = four_actors(2, 8, 1), torch.zeros(8, 8)
    devices = dict.fromkeys(range(plan.num_ranks), CpuDevice())
    values = [idle_act_s(plan, {"w": x}, lambda step: (x,), devices, 400) * 1e6 for _ in range(15)]
    low, middle, high = quantiles(values, n=4)
    print(
        f"acts that do nothing: {middle:.1f} us per act (quartiles {low:.1f} to {high:.1f}, least {min(values):.1f}; 15 rounds of 2000 acts)"
    )


if __name__ == "__main__":
    main()
