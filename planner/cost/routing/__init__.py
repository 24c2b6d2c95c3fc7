"""How tokens are routed to experts: which are popular, and the load of the busiest that follows."""

from planner.cost.routing.loads import ExpertLoad, Loads, draw_loads
from planner.cost.routing.routing import Popularity, Routing

__all__ = ["ExpertLoad", "Loads", "Popularity", "Routing", "draw_loads"]
