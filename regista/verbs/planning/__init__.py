"""Verbs that make, change or explain plans, and that list what plans are made from."""
