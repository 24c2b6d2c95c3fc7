"""Floor 2: a discrete-event simulator of Plans.  It plays the same token game as the backend, with a cost table for a clock."""

from simulator.engine import Engine, simulate, simulate_shared
from simulator.live_bytes import dry_run

__all__ = ["Engine", "dry_run", "simulate", "simulate_shared"]
