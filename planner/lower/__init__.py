"""Lowering: makes a Plan from a staged graph and the decisions of the search (planner.lower.build).

No door of its own: those who perform Plans read rooms of it that need no search, which takes a second to load.
"""
