"""Initial values of state, had in pieces: drawn by counter, cut from a file, or given in memory; each rank asks for just its part."""

from backend.initial.of_program import program_values
from backend.initial.values import Given, Layers, Renamed, Values
from backend.initial.weights import Weights

__all__ = ["Given", "Layers", "Renamed", "Values", "Weights", "program_values"]
