"""Fragments as code that torch's inductor compiles, an option of a run: traced, compiled before the first act, cached by content."""

from backend.ops.inductor.options import Kernels, NotCompiled, check_kernels, lacking

__all__ = ["Kernels", "NotCompiled", "check_kernels", "lacking"]
