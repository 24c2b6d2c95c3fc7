"""Search: pins, the choice problem of a staged graph, and the methods that solve it."""

from planner.search.assign import assign_layouts
from planner.search.bounds.pieces import ModelPiece, PieceCost, PieceSearch, model_pieces
from planner.search.bounds.scaled import scaled_pieces
from planner.search.formulation import build_model
from planner.search.layout_costs import LayoutCosts
from planner.search.methods.method import Method, search
from planner.search.model import Assignment, SearchModel
from planner.search.pins import Pin, parse_pins
from planner.search.routes import Move, StageTransfer
from planner.search.strategies import LocalOp, StrategySets

__all__ = [
    "Assignment",
    "LocalOp",
    "StrategySets",
    "Method",
    "Move",
    "ModelPiece",
    "PieceSearch",
    "PieceCost",
    "Pin",
    "LayoutCosts",
    "SearchModel",
    "StageTransfer",
    "assign_layouts",
    "build_model",
    "parse_pins",
    "model_pieces",
    "scaled_pieces",
    "search",
]
