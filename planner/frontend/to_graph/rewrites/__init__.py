"""Rewrites of a traced micro-batch into ops that keep or read less than the traced ones, with the same results.

unfolded               batched products keep their batch dims
dropped                a dropout is one op that draws its mask again in the backward pass
with_shared_heads      attention reads grouped keys and values without repeating them
with_narrow_indices    gather and scatter_add read an index before it is expanded
with_element_checks    checks of values look at elements where they lie
"""

from planner.frontend.to_graph.rewrites.dropout import dropped
from planner.frontend.to_graph.rewrites.element_checks import with_element_checks
from planner.frontend.to_graph.rewrites.shared_heads import with_shared_heads
from planner.frontend.to_graph.rewrites.unfold import unfolded
from planner.frontend.to_graph.rewrites.wide_index import with_narrow_indices

__all__ = ["dropped", "unfolded", "with_element_checks", "with_narrow_indices", "with_shared_heads"]
