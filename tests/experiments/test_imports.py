"""Every module of the experiments can be imported, also those that no test performs.

One of them, which measures a library beside code of ours, asked for a function that had moved, which no test showed.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import experiments

NAMES = sorted(
    module.name for module in pkgutil.walk_packages(experiments.__path__, "experiments.") if not module.name.endswith("__main__")
)


OPTIONAL = {"experiments.jax_twins": ("jax", "flax", "optax")}
"""Packages of an extra that an experiment needs, which need not be installed."""


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_the_experiments_is_imported(name: str) -> None:
    for package, needed in OPTIONAL.items():
        if name.startswith(f"{package}."):
            for module in needed:
                pytest.importorskip(module, reason="the extra 'jax' is not installed")
    assert importlib.import_module(name).__name__ == name
