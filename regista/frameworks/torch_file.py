"""The text of the file: tables of the split, what torch does with them, and a step; then three steps of the model that the Plan names."""

from __future__ import annotations

from pprint import pformat

from regista.frameworks.split import TorchSplit, Way

__all__ = ["torch_file"]


def torch_file(split: TorchSplit) -> str:
    """Python that applies the split to a module: ``parallelize``, ``make_optimizer``, ``step``, and ``main`` for torchrun."""
    devices = split.stages
    for size in split.mesh:
        devices *= size
    head = _HEAD.format(plan=split.plan_id, model=split.model, way=split.way.value, devices=devices)
    tables = [("MODEL", split.model), ("MESH", split.mesh), ("MICRO_BATCHES", split.micro_batches), ("OPTIONS", dict(split.options))]
    tables.append(("BATCH_DIMS", split.batch_dims))
    if split.way is Way.PLACED:
        tables += [("INPUTS", split.inputs), ("PARAMETERS", dict(split.parameters))]
    elif split.way is Way.STAGES:
        tables += [("STAGES", split.stages), ("SPLIT_POINTS", split.split_points)]
    else:
        tables.append(("ZERO", split.zero))
    shown = "\n".join(f"{name} = {pformat(value, width=120, compact=True, sort_dicts=False)}" for name, value in tables)
    body = _BODIES[split.way].format(optimizer=split.optimizer, schedule=split.schedule)
    main = _MAIN.replace("{loss}", "program.loss" if split.way is Way.STAGES else "program.loss_of")
    return f"{head}\n{_IMPORTS[split.way]}\n\n{shown}\n{_COMMON}{body}{main}"


_HEAD = '''"""Plan {plan} of {model} by torch alone: {way}.

    torchrun --nproc-per-node {devices} THIS_FILE        three steps of that model on {devices} processes; prints their losses

Take parallelize, make_optimizer and step into your own training script; only main() needs Regista, for the model and its batches.
"""
'''

_IMPORTS = {
    Way.REPLICATED: """import gc

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel""",
    Way.SHARDED: """import gc

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard""",
    Way.PLACED: """import gc

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication""",
    Way.STAGES: """import gc

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline""",
}

_COMMON = '''

def device():
    """This process's."""
    return torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")


def cut(batch, parts, number):
    """Part ``number`` of ``parts`` of every input along its batch dim; an input without one stays whole."""
    return [x if dim is None else x.chunk(parts, dim)[number] for x, dim in zip(batch, BATCH_DIMS, strict=True)]

'''

_REPLICATED_STEP = '''

def step(module, optimizer, batch, loss_of):
    """One step on a global batch; loss_of(module, inputs) is the mean over the inputs' batch.  Returns the loss of the whole batch."""
    own = cut([x.to(device()) for x in batch], dist.get_world_size(), dist.get_rank())
    optimizer.zero_grad()
    total = torch.zeros((), device=device())
    for number in range(MICRO_BATCHES):
        loss = loss_of(module, cut(own, MICRO_BATCHES, number)) / MICRO_BATCHES
        loss.backward()
        total += loss.detach()
    optimizer.step()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()

'''

_BODIES = {
    Way.REPLICATED: """
def parallelize(module, batch):
    return DistributedDataParallel(module.to(device()))


def make_optimizer(module):
    if ZERO:
        return ZeroRedundancyOptimizer(module.parameters(), optimizer_class=torch.optim.{optimizer}, **OPTIONS)
    return torch.optim.{optimizer}(module.parameters(), **OPTIONS)
"""
    + _REPLICATED_STEP,
    Way.SHARDED: '''
def parallelize(module, batch):
    """Blocks of a list or a sequence are gathered one at a time; the rest with the module itself."""
    module.to(device())
    for part in module.modules():
        if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential)):
            for block in part:
                if any(True for _ in block.parameters()):
                    fully_shard(block, reshard_after_forward=ZERO == 3)
    fully_shard(module, reshard_after_forward=ZERO == 3)
    return module


def make_optimizer(module):
    return torch.optim.{optimizer}(module.parameters(), **OPTIONS)
'''
    + _REPLICATED_STEP,
    Way.PLACED: '''
def placements(dims):
    return [Replicate() if dim is None else Shard(dim) for dim in dims]


def parallelize(module, batch):
    """Every parameter becomes a DTensor where PARAMETERS has it; tied ones stay tied; buffers are whole everywhere."""
    global mesh
    mesh = init_device_mesh(device().type, MESH)
    made = {{p: torch.nn.Parameter(distribute_tensor(p.data, mesh, placements(PARAMETERS[n])), p.requires_grad)
            for n, p in module.named_parameters()}}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            setattr(part, name, made[parameter])
        for name, buffer in part.named_buffers(recurse=False):
            setattr(part, name, distribute_tensor(buffer, mesh, placements([None] * len(MESH))))
    return module


def make_optimizer(module):
    return torch.optim.{optimizer}(module.parameters(), **OPTIONS)


def step(module, optimizer, batch, loss_of):
    """One step on a global batch; loss_of(module, inputs) is the mean over the inputs' batch.  Returns the loss of the whole batch."""
    optimizer.zero_grad()
    total = 0.0
    for number in range(MICRO_BATCHES):
        inputs = [distribute_tensor(x, mesh, placements(dims)) for x, dims in zip(cut(batch, MICRO_BATCHES, number), INPUTS, strict=True)]
        with implicit_replication():  # tensors that forward makes are whole everywhere
            loss = loss_of(module, inputs) / MICRO_BATCHES
            loss.backward()
        total += loss.full_tensor().item()
    optimizer.step()
    return total

''',
    Way.STAGES: '''
def parallelize(module, batch):
    """This process's stage; processes of one stage stand side by side and divide the batch."""
    global mesh
    mesh = init_device_mesh(device().type, (STAGES, dist.get_world_size() // STAGES), mesh_dim_names=("stage", "data"))
    inputs = cut(cut(batch, mesh["data"].size(), 0), MICRO_BATCHES, 0)[:-1]
    pipe = pipeline(module, mb_args=tuple(inputs), split_spec={{point: SplitPoint.BEGINNING for point in SPLIT_POINTS}})
    return pipe.build_stage(mesh["stage"].get_local_rank(), device(), group=mesh["stage"].get_group())


def make_optimizer(stage):
    return torch.optim.{optimizer}(stage.submod.parameters(), **OPTIONS)


def step(stage, optimizer, batch, loss):
    """One step on a global batch whose last input is the target; loss(output, target) is a mean.  Returns the loss of the whole batch."""
    own = cut([x.to(device()) for x in batch], mesh["data"].size(), mesh["data"].get_local_rank())
    optimizer.zero_grad()
    losses = []
    first, last = stage.stage_index == 0, stage.stage_index == STAGES - 1
    {schedule}(stage, MICRO_BATCHES, loss_fn=loss).step(*(own[:-1] if first else []), **(dict(target=own[-1], losses=losses) if last else {{}}))
    for parameter in stage.submod.parameters():
        dist.all_reduce(parameter.grad, group=mesh["data"].get_group())
        parameter.grad /= mesh["data"].size()
    optimizer.step()
    total = torch.stack(losses).mean().detach() if last else torch.zeros((), device=device())
    dist.all_reduce(total)
    return total.item() / mesh["data"].size()

''',
}

_MAIN = """
def main():
    from regista.api import program_of

    program = program_of(MODEL)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    batches = [program.batch(number) for number in range(3)]
    module = parallelize(program.module, batches[0])
    optimizer = make_optimizer(module)
    for number, batch in enumerate(batches):
        loss = step(module, optimizer, batch, {loss})
        if dist.get_rank() == 0:
            print(f"step {number}: loss {loss:.9g}", flush=True)
    dist.barrier()  # nobody leaves while another still reads from it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # what still holds gloo's threads goes before Python does, or torch may abort at exit
"""
