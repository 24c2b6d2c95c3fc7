"""The question that is asked before code runs which only a Plan names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from planner.ir.errors import Untrusted
from planner.ir.plan import Plan
from regista.origin.handed import handed_file
from regista.origin.record import is_recorded, record

__all__ = ["check_code", "names_code", "record_like", "trusting"]

_TRUSTED: ContextVar[bool] = ContextVar("regista-trust", default=False)


def names_code(plan: Plan) -> bool:
    """Whether the Plan's model is a file that runs code when it is loaded: ``file.py:factory``, or a ``.pt2``."""
    return not plan.model.startswith("zoo:") and (plan.model.endswith(".pt2") or ".py:" in plan.model)


def check_code(plan: Plan) -> None:
    """Refuse to load the model that a Plan names, where that runs code of a file that the user has not named.

    Raises:
        Untrusted: the Plan was not made here by this user, and nothing says that it is trusted.
    """
    if names_code(plan) and not _TRUSTED.get() and not is_recorded(plan) and handed_file(plan.model) is None:
        raise Untrusted(
            f"plan {plan.plan_id} names {plan.model}, a file whose code would run as you, and it was not planned on this machine by you; look "
            "at that file first, then add --trust (in Python: hand the program over, program=...)"
        )


def record_like(plan: Plan, made: Plan) -> None:
    """A Plan that was made from one of this user's is this user's."""
    if names_code(made) and (_TRUSTED.get() or is_recorded(plan)):
        record(made)


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Within the block Plans may name code, if ``trust``."""
    token = _TRUSTED.set(trust)
    try:
        yield
    finally:
        _TRUSTED.reset(token)
