"""The second front end: functions of JAX and modules of StableHLO as Programs."""

from planner.frontend.stablehlo.jax_function import from_jax

__all__ = ["from_jax"]
