"""The best choice within a memory limit, with a proof of how far from the optimum it can be."""
