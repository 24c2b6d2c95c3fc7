"""Speeds of planning, simulating and performing on this machine: medians with spread, ratios within one run."""
