"""How tokens are routed to experts: which are popular, and the load of the busiest that follows."""

from planner.cost.routing.load import ExpertLoad
from planner.cost.routing.routing import Popularity, Routing

__all__ = ["ExpertLoad", "Popularity", "Routing"]
