"""All state of a Program's step, without ever holding the model: parameters from a source of the user's choice, optimizer state as it was given."""

from __future__ import annotations

from backend.initial.drawn import Drawn, initial_values
from backend.initial.recipe import filled
from backend.initial.values import Given, Layers, Values
from planner.frontend import Program
from planner.frontend.optim.loss_scale import state_of
from planner.ir.errors import Unsupported
from planner.ir.graph import InputKind

__all__ = ["program_values"]


def program_values(program: Program, micro_batches: int, *, seed: int | None = None, weights: Values | None = None) -> Layers:
    """Values of every state input of ``program.graph(micro_batches)``.

    Args:
        seed: parameters and buffers are drawn by counter from it, with the module's own distributions (the Program needs a Deferred).
        weights: or they are cut from here; optimizer state that it has, too.

    Returns:
        layers: the weights or draws, what a torch optimizer holds, zeros for other optimizer state, constants of the trace.

    Raises:
        Unsupported: neither or both are given; the module was built before, so that how it was made is not known; see initial_values.
    """
    if (seed is None) == (weights is None):
        raise Unsupported("initial values come from a seed or from weights; give exactly one of the two")
    if program.averages:
        raise Unsupported(
            f"program {program.name} keeps moving averages, which begin at the parameters' first values; begin with the module's own (init module)"
        )
    graph = program.graph(micro_batches)
    zeros = {
        given.name: filled(graph.values[given.value].shape, graph.values[given.value].dtype)
        for given in graph.inputs
        if given.kind is InputKind.OPTIMIZER_STATE
    }
    constants = Given(program.constants(micro_batches) | program.random_state | state_of(program.loss_scaling))
    optimizer = Given(program.optimizer_state()), Drawn(seed=seed or 0, recipes=zeros)
    if weights is not None:
        return Layers((weights, *optimizer, constants))
    assert seed is not None
    if program.factory is None:
        raise Unsupported(
            f"program {program.name} holds a module that is built already, so that its draws are not known; give Program(Deferred(build)) "
            f"with a function that builds it, or leave out the seed to take the module's own values"
        )
    drawn = initial_values(program.factory, seed)
    return Layers((drawn.drawn, drawn.fixed, *optimizer, constants))
