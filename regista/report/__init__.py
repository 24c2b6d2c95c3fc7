"""Reports for the browser: one self-contained HTML page per comparison, one per table of rows, and an index of all experiments."""

from regista.report.claims import Claim, load_claims
from regista.report.folder import save_folder
from regista.report.pages.comparison_page import save_comparison

__all__ = ["Claim", "load_claims", "save_comparison", "save_folder"]
