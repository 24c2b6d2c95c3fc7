"""Hooks that the user put on parameters and modules: what becomes of each kind.

kind                                          what becomes of it
forward hooks and pre-hooks of modules        run while the module is traced, as any of its code
Parameter.register_hook                       runs on the traced gradient: what it returns is the gradient; one that returns None is refused
backward hooks and pre-hooks of modules       the same
tensor hooks that forward registers           the same
register_post_accumulate_grad_hook            refused: it sees .grad, which a plan does not have
hooks of an optimizer's step                  refused: the update is an op of the plan

A hook sees what it sees when one device accumulates over m micro-batches, the gradient of loss / m: while hooks are there, the step is
differentiated from 1 / m and its gradients are multiplied by m, since the plan takes their mean (SEMANTICS 6.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product

from torch import Tensor, nn

from planner.frontend.tracing.source import line_of_function
from planner.ir.errors import Unsupported

__all__ = ["BackwardHooks", "refuse_hooks"]

_Hook = Callable[..., object]


def refuse_hooks(module: nn.Module, optimizer: object = None) -> None:
    """Raises Unsupported: a hook that no plan carries out, with its parameter, its function and the way out."""
    for name, parameter in module.named_parameters():
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            raise Unsupported(
                f"parameter {name} has the post-accumulate-grad hook {line_of_function(hook)}: a plan has no .grad to show it; "
                "remove it, or return the changed gradient from a hook of Parameter.register_hook"
            )
    optimizers = optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
    for kind, one in product(("pre", "post"), optimizers):
        for hook in (getattr(one, f"_optimizer_step_{kind}_hooks", None) or {}).values():
            raise Unsupported(
                f"the optimizer has the step {kind}-hook {line_of_function(hook)}: a plan's update is an op that calls no Python; remove it"
            )


class BackwardHooks:
    """The hooks that run in the backward pass of one trace.

    present: there is one (those that forward registers count from then on).
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._of_parameters = {name: list((p._backward_hooks or {}).values()) for name, p in module.named_parameters()}
        self.present = any(self._of_parameters.values())

    def attach(self, values: Mapping[str, Tensor]) -> None:
        """Put the hooks of parameters on the tensors that stand for them."""
        for name, hooks in self._of_parameters.items():
            for hook in hooks:
                values[name].register_hook(_pure(hook, f"parameter {name}"))  # type: ignore[no-untyped-call]

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Inside, hooks of modules and tensors are noticed and held to the same law; afterwards they are as they were."""
        dicts = []
        for name, child in self._module.named_modules():
            where = f"module {name!r}" if name else "the root module"
            for hooks in (child._backward_hooks, child._backward_pre_hooks):
                dicts.append((hooks, dict(hooks)))
                self.present = self.present or bool(hooks)
                for key, hook in hooks.items():
                    hooks[key] = _pure(hook, where)
        register = Tensor.register_hook

        def noticing(tensor: Tensor, hook: _Hook) -> object:
            self.present = True
            return register(tensor, _pure(hook, "a tensor of forward"))  # type: ignore[no-untyped-call]

        Tensor.register_hook = noticing  # type: ignore[method-assign]
        try:
            yield
        finally:
            Tensor.register_hook = register  # type: ignore[method-assign]
            for hooks, before in dicts:
                hooks.clear()
                hooks.update(before)


def _pure(hook: _Hook, where: str) -> _Hook:
    """The hook, refused when it only looks on."""

    def called(*args: object) -> object:
        returned = hook(*args)
        if returned is None:
            raise Unsupported(
                f"{where} has the backward hook {line_of_function(hook)}, which returns nothing: it would run while the step is planned "
                "and never again; remove it, or let it return the gradient"
            )
        return returned

    return called
