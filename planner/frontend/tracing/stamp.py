"""Who made each traced node: its role, its module and, for a backward node, the forward node it differentiates.

Autograd numbers every differentiable op; the number is on the grad_fn and, while the op runs, one below the thread's counter:

    forward    create_node(mm)      seq = counter - 1        ->  nodes_of[seq] += mm
    backward   MmBackward.prehook   grad_fn._sequence_nr()   ->  every node until the next prehook differentiates the last of nodes_of[seq]

Global module hooks keep the module stack, so the user's module is not touched; Stamper is a context manager that removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import Node as GradNode
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from planner.frontend.tracing.source import calling_line
from planner.ir.graph import Role

__all__ = ["LINE", "STAMP", "Stamp", "Stamper"]

STAMP = "regista"  # key in fx.Node.meta
_LAYERS = frozenset(f"regista.{layer}.default" for layer in ("attention", "lstm", "gru", "rnn"))
"""Ops of ours that differentiate nothing: torch turns grad mode off around them, and backward has them only to compute them again."""
LINE = "regista_line"  # the same: the user's line that made the node, where a Stamper was asked for it


class _Removable(Protocol):
    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stamp:
    """forward: the node that a backward node differentiates.   again: the backward pass computes a forward op once more (checkpointed parts)."""

    role: Role
    module: str
    forward: fx.Node | None = None
    again: bool = False


class Stamper:
    """Stamps nodes while it is entered.

    Args:
        module: the root whose submodules give the paths.
        trainable: for each of the first placeholders (the parameters) whether a gradient flows to it.
        lines: write the user's line into each node, too; slow.
    """

    def __init__(self, module: nn.Module, trainable: Sequence[bool], *, lines: bool = False) -> None:
        self._lines = lines
        self._paths = {id(child): name for name, child in module.named_modules()}
        self._trainable = tuple(trainable)
        self._on_the_way: set[fx.Node] = set()  # nodes that a trainable parameter reaches
        self._stack: list[str] = []
        self._role = Role.FORWARD
        self._forward: fx.Node | None = None
        self._nodes_of: dict[int, list[fx.Node]] = {}
        self._hooks: list[_Removable] = []

    def __enter__(self) -> Stamper:
        def enter(child: nn.Module, _args: object) -> None:
            if id(child) in self._paths:
                self._stack.append(self._paths[id(child)])

        def leave(child: nn.Module, _args: object, _output: object) -> None:
            if id(child) in self._paths:
                self._stack.pop()

        # leave is not called when a module raises: the stack then still names it, and the error message too
        self._hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def module(self) -> str:
        """Path of the module that runs now (or raised)."""
        return self._stack[-1] if self._stack else ""

    def begin(self, graph: fx.Graph) -> None:
        """The placeholders of the graph stand; what follows is to be stamped."""
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._on_the_way.update(node for node, trains in zip(placeholders, self._trainable, strict=False) if trains)

    def attach(self) -> None:
        """Begin, and shadow the running tracer's create_node; called inside the traced function."""
        mode = get_proxy_mode()
        assert mode is not None
        create: Callable[..., fx.Node] = mode.tracer.create_node
        self.begin(mode.tracer.graph)

        def stamped(*args: object, **kwargs: object) -> fx.Node:
            node = create(*args, **kwargs)
            self.stamp(node)
            return node

        mode.tracer.create_node = stamped  # type: ignore[method-assign]

    def stamp(self, node: fx.Node) -> None:
        """Write who made the node into its meta."""
        node.meta[STAMP] = self._stamp(node)
        if self._lines:
            node.meta[LINE] = calling_line()

    def _stamp(self, node: fx.Node) -> Stamp:
        if self._role is Role.FORWARD:
            if node.op == "call_function":
                self._nodes_of.setdefault(torch._C._autograd._get_sequence_nr() - 1, []).append(node)
                self._forward = node
                if any(operand in self._on_the_way for operand in node.all_input_nodes):
                    self._on_the_way.add(node)
            return Stamp(Role.FORWARD, self.module)
        forward = self._forward
        module: str = forward.meta[STAMP].module if forward is not None else ""
        # inside of autograd gradients are computed without grad mode; torch.utils.checkpoint turns it on to compute its part again
        again = torch._C._current_graph_task_id() >= 0 and (torch.is_grad_enabled() or str(node.target) in _LAYERS)
        return Stamp(Role.BACKWARD, self.module if again and self._stack else module, forward, again)

    def watch(self, loss: Tensor) -> None:
        """From here on nodes are BACKWARD; each autograd node of ``loss`` announces the forward op it differentiates."""
        self._role = Role.BACKWARD
        pending, seen = [loss.grad_fn], set[GradNode]()
        while pending:
            grad_fn = pending.pop()
            if grad_fn is None or grad_fn in seen:
                continue
            seen.add(grad_fn)
            grad_fn.register_prehook(self._announcer(grad_fn._sequence_nr()))
            pending.extend(following for following, _ in grad_fn.next_functions)

    def _announcer(self, number: int) -> Callable[[object], None]:
        nodes = self._nodes_of.get(number, [])
        # ops without gradient (masks, indices) that follow carry the same number: prefer what a parameter reaches
        differentiable = [node for node in nodes if node in self._on_the_way] or nodes

        def announce(_grads: object) -> None:
            self._stack.clear()  # checkpointed parts end by an exception as soon as what is needed is there
            if differentiable:
                self._forward = differentiable[-1]

        return announce
