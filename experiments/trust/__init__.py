"""How far predictions can be trusted: every set of measurements that the project scores, its errors and its intervals, from committed rows."""

from experiments.trust.record import record

__all__ = ["record"]
