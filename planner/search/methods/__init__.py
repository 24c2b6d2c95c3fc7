"""The search methods, exact, o3, o2, greedy and exhaustive, and their common interface."""
