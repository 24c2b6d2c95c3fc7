"""Exact reductions: a smaller choice problem with the same optimum, and the way back to the first one."""
