"""The kernel database that planner.cost.kernels ships: built from published tables, its surfaces fitted, its errors scored on what was left out."""

__all__: list[str] = []
