"""A LogicalGraph run op by op with torch: what the graph says, in the plainest words."""

from __future__ import annotations

import torch
from oracle import Outcome
from torch import Tensor

from planner.frontend import Program
from planner.frontend.optim import clipping, loss_scale, updates
from planner.ir.graph import ACCUMULATE, Arg, Dt, InputKind, LogicalGraph, Op, Ref, Role
from planner.opset.layers.attention import has_place

__all__ = ["call", "interpret"]


def _resolve(arg: Arg, env: dict[str, Tensor]) -> object:
    match arg:
        case Ref(value):
            return env[value]
        case Dt(dtype):
            return getattr(torch, dtype.value)
        case tuple():
            return [_resolve(item, env) for item in arg]
    return arg


def call(op: Op, env: dict[str, Tensor]) -> None:
    """Run one op; a view is a reshape and a clone is contiguous, since where a value lies is not part of the graph."""
    args = [_resolve(a, env) for a in op.args]
    kwargs = {key: _resolve(a, env) for key, a in op.kwargs}
    if op.target == "aten.view.default":
        result = torch.reshape(*args)
    elif op.target == "aten.clone.default":
        result = args[0].contiguous()
    elif op.target in updates.KERNELS:
        result = updates.KERNELS[op.target](*args)
    elif op.target in clipping.KERNELS:
        result = clipping.KERNELS[op.target](*args)
    elif op.target in loss_scale.KERNELS:
        result = loss_scale.KERNELS[op.target](*args)
    else:
        if has_place(op):
            args = args[:-2]  # where a part of the rows stands; here they are whole
        namespace, name, *overload = op.target.split(".")
        packet = getattr(getattr(torch.ops, namespace), name)
        result = getattr(packet, overload[0] if overload else "default")(*args, **kwargs)
    results = [result] if isinstance(result, Tensor) else result
    assert len(results) == len(op.outputs)
    env.update((name, value) for name, value in zip(op.outputs, results, strict=True) if name is not None)


def interpret(program: Program, graph: LogicalGraph, micro_batches: int, steps: int) -> Outcome:
    """Train by the graph alone: m times the micro-batch ops, the mean of what is accumulated, one update."""
    state = program.initial_state(micro_batches)
    held = {i.value: state[i.name] for i in graph.inputs if i.kind.is_state}
    buffers = {i.value for i in graph.inputs if i.kind is InputKind.BUFFER}
    batch_inputs = [i for i in graph.inputs if i.kind is InputKind.BATCH]
    losses: list[float] = []
    sums: dict[str, Tensor] = {}
    for step in range(steps):
        sums = {}
        for index in range(micro_batches):
            env = dict(held)
            cut = program.micro_batch(program.batch(step), micro_batches, index)
            env.update(zip((i.value for i in batch_inputs if i.whole_of is None), cut, strict=True))
            whole = {f"input.{number}": tensor for number, tensor in enumerate(program.batch(step))}
            env.update({i.value: whole[i.whole_of] for i in batch_inputs if i.whole_of is not None})
            for op in graph.ops:
                if op.target == ACCUMULATE:
                    (out,), (value,) = op.outputs, op.inputs
                    assert out is not None
                    share = env[value] / micro_batches
                    sums[out] = sums[out] + share if out in sums else share
                elif op.role is not Role.UPDATE:
                    call(op, env)
                for name in filter(None, op.outputs if op.role in (Role.FORWARD, Role.BACKWARD) else ()):
                    type_ = graph.values[name]
                    assert (tuple(env[name].shape), str(env[name].dtype)) == (type_.shape, f"torch.{type_.dtype.value}"), op.where()
            held.update({old: env[new] for old, new in graph.updates.items() if old in buffers})
        env = {**held, **sums}
        numbers = program.step_numbers(step)
        env.update((i.value, torch.tensor(numbers[i.name], dtype=torch.float64)) for i in graph.inputs if i.kind is InputKind.STEP_INPUT)
        for op in graph.ops:
            if op.role is Role.UPDATE:
                call(op, env)
        held.update({old: env[new] for old, new in graph.updates.items() if old not in buffers})
        losses.append(sums[graph.mean_loss].item())
    return Outcome(
        losses=tuple(losses),
        gradients_of_last_step={name: sums[value] for name, value in graph.gradients.items()},
        parameters={i.name: held[i.value] for i in graph.inputs if i.kind is InputKind.PARAMETER},
        buffers={i.name: held[i.value] for i in graph.inputs if i.kind is InputKind.BUFFER},
    )
