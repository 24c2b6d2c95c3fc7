"""The parent of a run: it starts the workers, watches them, and explains what went wrong."""

from backend.launch.nodes import Nodes, run_on_nodes
from backend.launch.processes import run
from backend.launch.session import PausedRun, Session

__all__ = ["Nodes", "PausedRun", "Session", "run", "run_on_nodes"]
