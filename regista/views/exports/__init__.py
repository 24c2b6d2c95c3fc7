"""Traces in the formats of other tools: Perfetto and PyTorch's profiler."""
