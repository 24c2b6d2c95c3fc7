"""Fragments as compiled Python functions: their kernels, operands, results and workspace."""
