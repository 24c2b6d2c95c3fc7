"""Search: pins, the choice problem of a staged graph, and the methods that solve it."""

from planner.search.assign import assign
from planner.search.bounds.pieces import Piece, PieceModel, PiecePrice, pieces_of
from planner.search.bounds.scaled import scaled_pieces
from planner.search.build import build_model
from planner.search.menu import LocalOp, Menus
from planner.search.methods.methods import Method, search
from planner.search.model import Assignment, SearchModel
from planner.search.pins import Pin, parse_pins
from planner.search.prices import Prices
from planner.search.routes import Move, StageTransfer

__all__ = [
    "Assignment",
    "LocalOp",
    "Menus",
    "Method",
    "Move",
    "Piece",
    "PieceModel",
    "PiecePrice",
    "Pin",
    "Prices",
    "SearchModel",
    "StageTransfer",
    "assign",
    "build_model",
    "parse_pins",
    "pieces_of",
    "scaled_pieces",
    "search",
]
