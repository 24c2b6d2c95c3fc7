"""Exact reductions: a smaller choice problem with the same optimum, and the expansion of its choices to the original problem."""
