"""The memory of Regsts: one allocation per rank, its blocks, and the heap of the process."""
