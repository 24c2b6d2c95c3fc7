"""Equal lines of the product that stay: which files have them, and why one place would be worse."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations_with_replacement
from types import MappingProxyType

__all__ = ["REASONS", "reason_for"]

REASONS: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        ("backend/launch/nodes.py",): "a given number of hosts and a range of them are performed alike, and each call says its arguments",
        ("regista/verbs/running/run.py",): "the same options of the command line go to one host and to several, each with some of its own",
        ("backend/reference.py",): "a function, and the class behind it, which tests derive wrong performers from",
        (
            "backend/ops/fused/batch_norm.py",
            "planner/frontend/tracing/decomp/norms.py",
        ): "a kernel has the parameters of the function that it replaces",
        (
            "planner/frontend/attention/blocks.py",
            "planner/frontend/attention/fused.py",
            "planner/frontend/attention/ops.py",
            "planner/frontend/attention/products.py",
        ): "one op, two ways to perform it: torch reads the op's types from a signature, and each way has the same",
        ("planner/frontend/random/kernels.py",): "torch reads the types of an op from its signature",
        (
            "planner/frontend/recurrent/gru.py",
            "planner/frontend/recurrent/lstm.py",
            "planner/frontend/recurrent/rnn.py",
        ): "torch reads the types of an op from its signature",
        (
            "zoo/language/bert.py",
            "zoo/language/gpt.py",
            "zoo/language/gpt_family.py",
            "zoo/language/moe.py",
            "zoo/vision/vit.py",
        ): "zoo:NAME?OPTION=VALUE takes its options from the factory's signature",
    }
)
"""Files -> why they share lines with each other, or one with itself."""


def reason_for(pair: tuple[str, str]) -> str | None:
    """Why two files share lines; None: they should not."""
    return next((reason for files, reason in REASONS.items() if pair in combinations_with_replacement(files, 2)), None)
