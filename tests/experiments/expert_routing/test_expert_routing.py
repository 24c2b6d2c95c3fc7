"""The committed rows of the experiment on skewed routing keep its claim, and its skew is the skew that is drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.expert_routing.__main__ import CSV, SKEWS, skewed
from planner.cost.routing.loads import draw_loads


@pytest.mark.parametrize(("experts", "top_k"), [(16, 2), (256, 8)])
def test_a_skew_that_is_asked_for_is_drawn(experts: int, top_k: int) -> None:
    for skew in (2.0, 5.0):
        drawn = draw_loads(skewed(skew, experts, top_k), num_experts=experts, tokens=65_536, top_k=top_k, draws=10)
        assert np.median(drawn.skew) == pytest.approx(skew, rel=0.03)


def test_the_robust_plan_is_never_slower_and_its_bound_is_its_objective() -> None:
    table = pd.read_csv(CSV)
    plans = table[table.plan.isin(["even", "robust"])].pivot(
        index=["case", "skew"], columns="plan", values=["quantile_s", "objective_s", "bound_s"]
    )
    assert len(plans) == 2 * len(SKEWS)
    assert (plans["quantile_s"]["robust"] <= plans["quantile_s"]["even"]).all()
    assert (plans["objective_s"]["robust"] == plans["bound_s"]["robust"]).all()
    at_5 = plans["quantile_s"].loc[("h100-sxm:1", 5.0)]
    assert at_5["even"] > 1.15 * at_5["robust"]
