"""The parent of a run: it starts the workers, watches them, and explains what went wrong."""

from backend.launch.nodes import HostLost, HostWork, Nodes, Performed, check_folder_of, run_elastic, run_on_nodes
from backend.launch.processes import run
from backend.launch.session import PausedRun, Session

__all__ = ["HostLost", "HostWork", "Nodes", "PausedRun", "Performed", "Session", "check_folder_of", "run", "run_elastic", "run_on_nodes"]
