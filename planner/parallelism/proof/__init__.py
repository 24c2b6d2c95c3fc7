"""What the lower bound of a search proves: among which plans it holds, and what a time limit left unproven."""

from planner.parallelism.proof.covered import SEARCH_RESULTS, covered_text, with_open_parts
from planner.parallelism.proof.cut_short import CutShort, SearchCutShort, check_search

__all__ = ["SEARCH_RESULTS", "CutShort", "SearchCutShort", "check_search", "covered_text", "with_open_parts"]
