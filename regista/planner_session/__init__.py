"""Several searches of one program, each of which begins with what the ones before have worked out."""

from regista.planner_session.session import PlannerSession

__all__ = ["PlannerSession"]
