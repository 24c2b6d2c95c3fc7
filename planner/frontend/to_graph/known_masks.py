"""Masks of attention that a module makes of constants alone: a causal one is the op's own, and one that hides nothing is left out.

    arange, le, and ..  -->  mask [1, 1, S, T]  -->  attention(q, k, v, mask)       becomes       attention(q, k, v, causal)

So a model of transformers, which writes its mask out while it is traced, is the same step as one that says is_causal: half of the products, and
nothing with an element per query and key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor

from planner.frontend.tracing.trace import Capture

__all__ = ["KnownMasks"]

_LOGGER = logging.getLogger("planner.frontend")
_MASK_AND_CAUSAL = {"regista.attention.default": (3, 4), "regista.attention_backward.default": (4, 7)}
"""Where in the arguments of an op its mask and is_causal stand."""
_LARGEST = 2**27
"""Elements of the largest mask that is worked out, in about a second."""


class KnownMasks:
    """What the masks of a traced step say, as far as constants alone decide it."""

    def __init__(self, captured: Capture) -> None:
        self._constants: Mapping[str, Tensor] = captured.constants
        self._causal: dict[fx.Node, bool | None] = {}

    def arguments(self, node: fx.Node) -> tuple[object, ...]:
        """The node's arguments; of attention without a mask that is causal, or hides nothing, and causal with the shape of all of it, and no cuts."""
        if (places := _MASK_AND_CAUSAL.get(str(node.target))) is None:
            return tuple(node.args)
        args = self._without_known_mask(tuple(node.args), places)
        return (*args, tuple(node.meta["val"][0].shape), ()) if args[places[1]] else args

    def _without_known_mask(self, args: tuple[object, ...], places: tuple[int, int]) -> tuple[object, ...]:
        if not isinstance(mask := args[places[0]], fx.Node):
            return args
        if mask not in self._causal:
            self._causal[mask] = self._is_causal(mask)
        if (causal := self._causal[mask]) is None:
            return args
        replaced = {places[0]: None, places[1]: causal}
        return tuple(replaced.get(place, arg) for place, arg in enumerate(args))

    def _is_causal(self, mask: fx.Node) -> bool | None:
        """True: the mask is causal.   False: it hides nothing.   None: neither, or inputs of the step decide."""
        needed = _ancestors(mask)
        if needed is None:
            return None
        if (largest := max(_numel(node) for node in needed)) > _LARGEST:
            _LOGGER.warning(
                "an attention mask of %d elements is not looked at, so it counts as any mask; pass is_causal, or one of a smaller batch",
                largest,
            )
            return None
        held: dict[fx.Node, object] = {}
        for node in needed:
            if node.op == "get_attr":
                held[node] = constant = self._constants[str(node.target)]
                if constant.is_meta or isinstance(constant, FakeTensor):
                    return None
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), cast(Any, held.__getitem__))
            assert callable(node.target)
            held[node] = node.target(*args, **kwargs)
        return _said(held[mask])


def _said(mask: object) -> bool | None:
    assert isinstance(mask, Tensor)
    seen, hidden = (mask, ~mask) if mask.dtype is torch.bool else (mask == 0, mask <= torch.finfo(mask.dtype).min)
    if bool(seen.all()):
        return False
    before = torch.ones(mask.shape[-2:], dtype=torch.bool).tril().expand(mask.shape)
    return True if torch.equal(seen, before) and torch.equal(hidden, ~before) else None


def _ancestors(mask: fx.Node) -> list[fx.Node] | None:
    """What the mask is computed from, in the order of the trace, and the mask itself; None: an input of the step or a draw is among it."""
    waiting, found = [mask], dict[fx.Node, None]()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = None
        drawn = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        if node.op not in ("get_attr", "call_function") or drawn:
            return None
        waiting.extend(node.all_input_nodes)
    return [node for node in mask.graph.nodes if node in found]


def _numel(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) else 0
