"""Rewrites of a traced micro-batch: dropouts that keep nothing, batched products with their dims, attention that reads shared heads as
they are, look-ups by an index that is as large as what it says.
"""

from planner.frontend.to_graph.rewrites.dropout import dropped
from planner.frontend.to_graph.rewrites.shared_heads import with_shared_heads
from planner.frontend.to_graph.rewrites.unfold import unfolded
from planner.frontend.to_graph.rewrites.wide_index import with_narrow_indices

__all__ = ["dropped", "unfolded", "with_narrow_indices", "with_shared_heads"]
