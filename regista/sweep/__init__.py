"""Sweeps: an experiment as a manifest, its points as rows of a CSV, its claim as relations that are checked."""

from regista.sweep.check import Row, evaluate
from regista.sweep.figure import draw_all
from regista.sweep.manifest import Manifest, load_manifest
from regista.sweep.rows import load_rows, points_rows
from regista.sweep.work import Checked, check, sweep

__all__ = ["Checked", "Manifest", "Row", "check", "draw_all", "evaluate", "load_manifest", "load_rows", "points_rows", "sweep"]
