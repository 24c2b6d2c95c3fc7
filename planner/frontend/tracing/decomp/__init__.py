"""Decompositions used while tracing: down to the algebra that SBP sees, and no further.

A reduction over a split dim is P(sum) or P(max); an op that hides its reduction (a mean, a batch norm, a cross-entropy) would
have to be gathered first.  So those are opened here, and a synchronous batch norm or a vocabulary-parallel loss is found by the
planner rather than programmed.  Counts are Python literals of the traced (micro-batch) shape, so the statistics stay global.
"""

from planner.frontend.tracing.decomp.table import decomposition_table

__all__ = ["decomposition_table"]
