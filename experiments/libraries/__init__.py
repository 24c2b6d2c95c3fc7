"""Libraries that could take the place of code of ours, measured beside it; what they fail at stands in the modules that stay."""
