"""The folder of one run: what the parent gives the workers, and what they leave behind."""

from backend.run_folder.files import Failure, Options
from backend.run_folder.merge import hardware, merge
from backend.run_folder.outcome import Outcome

__all__ = ["Failure", "Options", "Outcome", "hardware", "merge"]
