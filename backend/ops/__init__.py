"""Fragments as compiled Python functions: their kernels, operands, results and workspace."""

from backend.ops.fragment import CompiledFragment, compile_fragment
from backend.ops.kernels import kernel
from backend.ops.writable import WritableBlocks, writable_blocks

__all__ = ["CompiledFragment", "WritableBlocks", "compile_fragment", "kernel", "writable_blocks"]
