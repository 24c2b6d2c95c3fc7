"""Dropout as an option of the zoo's models: none by default, and where it is asked for one device's losses on several."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly

from backend import perform
from planner.ir.graph import Effect, Role
from planner.parallelism.make import PlanOptions, make_plan
from zoo import ZOO

SMALL: Mapping[str, Mapping[str, int]] = {
    "mlp": {"batch": 8, "width": 8, "hidden": 16},
    "gpt": {"layers": 2, "width": 16, "heads": 2, "vocab": 32, "batch": 4, "seq": 8},
    "gpt2": {"layers": 1, "width": 16, "heads": 2, "vocab": 32, "batch": 4, "seq": 8},
    "bert": {"layers": 2, "width": 16, "heads": 2, "vocab": 32, "batch": 4, "seq": 8},
    "dnabert": {"layers": 1, "width": 16, "heads": 2, "batch": 4, "seq": 8},
    "t5": {"layers": 1, "width": 16, "heads": 2, "hidden": 32, "vocab": 32, "batch": 4, "seq": 8, "target_seq": 8},
    "moe": {"layers": 2, "width": 16, "heads": 2, "experts": 2, "hidden": 16, "vocab": 32, "batch": 4, "seq": 4},
    "vit": {"batch": 4, "image": 16, "patch": 8, "classes": 4, "layers": 1, "width": 16, "heads": 2},
    "alexnet": {"batch": 4, "image": 64, "classes": 4, "width": 2},
    "wide_deep": {"batch": 8, "vocab": 64, "embedding": 4, "layers": 2, "width": 8},
    "vgg19": {"batch": 4, "image": 32, "classes": 4, "layers": 11, "width": 2},
}
DRAWS = {"mlp": 2, "gpt": 7, "gpt2": 4, "bert": 7, "dnabert": 4, "t5": 14, "moe": 7, "vit": 5, "alexnet": 2, "vgg19": 2, "wide_deep": 2}
"""Draws of a forward pass: of gpt, one behind the embeddings and three in each of two blocks."""


@pytest.mark.parametrize("model", SMALL)
def test_a_model_draws_only_where_dropout_is_asked_for_and_once_at_each_place(model: str) -> None:
    made = ZOO[model](**SMALL[model], dropout=0.1)
    draws = [op.draw for op in made.graph().ops if op.effect is Effect.RANDOM and op.role is Role.FORWARD]
    assert sorted(d for d in draws if d is not None) == list(range(DRAWS[model]))
    assert not any(op.effect is Effect.RANDOM for op in ZOO[model](**SMALL[model]).graph().ops)


@pytest.mark.representatives("gpt", "t5")
@pytest.mark.parametrize("model", SMALL)
def test_a_model_with_dropout_trains_on_a_pipeline_of_two_times_two_devices_like_on_one(model: str) -> None:
    made = ZOO[model](**SMALL[model], dropout=0.1, optimizer="sgd")
    options = PlanOptions(stages=2, mesh=(2,), micro_batches=2)
    plan = make_plan(made.graph(2), model=model, batch_size=made.batch_size, cluster=roomy_cluster(4), options=options)
    outcome = perform(plan, made.initial_state(2), made.batch, 2, gradients=True)
    assert_transparent(outcome, train_eagerly(made, 2, 2))
