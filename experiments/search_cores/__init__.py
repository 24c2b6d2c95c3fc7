"""Seconds and memory of a search over everything, on one core and on two."""
