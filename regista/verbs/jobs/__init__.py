"""Verbs on jobs as people write them, for their own frameworks."""
