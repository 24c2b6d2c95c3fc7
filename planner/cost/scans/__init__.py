"""What the kernels of state-space layers take on a device of the catalogue."""

from planner.cost.scans.rates import ScanRates, scan_rates

__all__ = ["ScanRates", "scan_rates"]
