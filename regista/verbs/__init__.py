"""The verbs of the command line: one module each, which holds its arguments, its call and what it shows."""

from regista.verbs.registry import VERBS, Verb

__all__ = ["VERBS", "Verb"]
