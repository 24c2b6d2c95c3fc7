"""Lower bounds by messages (TRW-S) and prices on memory, and choices made better by local moves."""
