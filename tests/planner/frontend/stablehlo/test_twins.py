"""GPT, ViT and an MLP-mixer in Flax NNX with optax AdamW: planned as their torch twins are, and trained by plans as jaxlib trains them."""

from __future__ import annotations

import pytest

pytest.importorskip("jax", reason="the extra 'jax' is not installed")
pytest.importorskip("flax", reason="the extra 'jax' is not installed")
pytest.importorskip("optax", reason="the extra 'jax' is not installed")

import regista
from experiments.jax_twins.measure import planned, trained

pytestmark = pytest.mark.thorough
MODELS = ("gpt", "vit", "mixer")


@pytest.mark.parametrize("model", MODELS)
def test_objective_and_layouts_are_the_torch_twins(model: str) -> None:
    found = planned(model, "local:2", micro_batches=2, stages=2)
    assert found.relative < 0.01
    assert found.same_layout == found.parameters


@pytest.mark.parametrize("model", MODELS)
def test_a_plan_trains_as_jaxlib(model: str) -> None:
    losses, at_end = trained(model, 3, regista.Performer.REFERENCE, micro_batches=1)
    assert losses < 1e-5
    assert at_end < 1e-5


@pytest.mark.processes
@pytest.mark.parametrize("model", MODELS)
def test_two_processes_train_as_jaxlib(model: str) -> None:
    losses, at_end = trained(model, 3, regista.Performer.GLOO, micro_batches=2, stages=2)
    assert losses < 1e-5
    assert at_end < 1e-5
