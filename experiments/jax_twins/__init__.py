"""Flax NNX models with optax beside the same models in torch: planned, and performed beside jaxlib.  Needs the extra ``jax``."""
