"""Rewrites of a traced micro-batch: dropouts that keep nothing, batched products with their dims, attention that reads shared heads as they are."""

from planner.frontend.to_graph.rewrites.dropout import dropped
from planner.frontend.to_graph.rewrites.shared_heads import with_shared_heads
from planner.frontend.to_graph.rewrites.unfold import unfolded

__all__ = ["dropped", "unfolded", "with_shared_heads"]
