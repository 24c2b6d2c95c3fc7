"""Verbs that predict, compare and draw."""
