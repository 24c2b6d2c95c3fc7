"""The conformance matrix: small models of the zoo x ways to distribute them, and what 'equal' means.

          data  tensor  sequence  gpipe  1f1b  interleaved  zero-bubble  2x2  2x2x2  ZeRO 1 2 3  recompute
gpt         .      .        .       .      .        .            .        .     .       . . .        .       one Plan per cell;
...                                                                                                       REFUSED: what cannot be, and why

Sequence: what lies between two tensor parallel regions is split along the sequence (Korthikanti et al. 2022); an image is split by rows
instead, and a vector, which has neither, by features.
"""

from .bf16 import BF16_FACTOR, assert_transparent_in_bf16, bf16_errors, errors_in_bf16, gradient_error_over_plain
from .cells import (
    OPTIMIZER,
    STEPS,
    assert_is_what_it_says,
    drawn_anew,
    expected,
    options_for,
    plan_for,
    program,
    roomy_cluster,
    searched_plan,
    trained,
    widened,
)
from .committed import read_plan, write_plans
from .equality import assert_transparent, errors
from .models import MODELS
from .ways import CELLS, COMMITTED, COVERING, REFUSED, WAYS

__all__ = [
    "BF16_FACTOR",
    "CELLS",
    "COMMITTED",
    "COVERING",
    "MODELS",
    "OPTIMIZER",
    "REFUSED",
    "STEPS",
    "WAYS",
    "assert_is_what_it_says",
    "assert_transparent",
    "assert_transparent_in_bf16",
    "bf16_errors",
    "drawn_anew",
    "errors",
    "errors_in_bf16",
    "expected",
    "gradient_error_over_plain",
    "options_for",
    "plan_for",
    "program",
    "read_plan",
    "roomy_cluster",
    "searched_plan",
    "trained",
    "widened",
    "write_plans",
]
