"""The search methods behind one interface: exact, o3, o2, greedy and exhaustive."""
