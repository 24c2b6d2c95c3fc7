"""Search: pins, the choice problem of a staged graph, and the methods that solve it."""

from planner.search.assign import assign
from planner.search.menu import LocalOp
from planner.search.methods import Method, search
from planner.search.model import Assignment, SearchModel, build_model
from planner.search.pieces import Piece, PiecePrice, pieces_of, price_piece
from planner.search.pins import Pin, parse_pins
from planner.search.prices import Prices

__all__ = [
    "Assignment",
    "LocalOp",
    "Method",
    "Piece",
    "PiecePrice",
    "Pin",
    "Prices",
    "SearchModel",
    "assign",
    "build_model",
    "parse_pins",
    "pieces_of",
    "price_piece",
    "search",
]
