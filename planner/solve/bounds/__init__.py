"""Lower bounds by message passing (TRW-S) and Lagrange multipliers of memory, and local search from a choice."""
