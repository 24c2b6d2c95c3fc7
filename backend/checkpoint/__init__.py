"""Checkpoints: saved by all ranks while training goes on, atomic, and loaded onto any layout."""

from backend.checkpoint.export import export
from backend.checkpoint.folder import latest
from backend.checkpoint.resume import resume_point
from backend.checkpoint.saved import Saved, find, verify
from backend.checkpoint.saver import SaveRequest

__all__ = ["Saved", "SaveRequest", "export", "find", "latest", "resume_point", "verify"]
