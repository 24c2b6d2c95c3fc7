"""The registry of verbs: what every verb's module offers, and what importing it may cost."""

from __future__ import annotations

from fresh_interpreter import run_python

from regista.verbs import VERBS

HEAVY = {"torch", "numpy", "numba", "simpy", "pulp", "highspy", "pandas", "networkx", "matplotlib", "bokeh", "starlette", "uvicorn", "h11"}


def test_every_verb_has_a_name_and_a_module_of_its_own():
    assert len({verb.name for verb in VERBS}) == len(VERBS) == len({verb.module for verb in VERBS})
    for verb in VERBS:
        assert verb.module.__name__.split(".")[-1] == verb.name.replace("-", "_")


def test_the_parser_of_all_verbs_loads_no_library_that_takes_long():
    loaded = run_python("from regista.cli import build_parser; build_parser(); import sys; print(*{m.split('.')[0] for m in sys.modules})")
    assert not HEAVY & set(loaded.split())
