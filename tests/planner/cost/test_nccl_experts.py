"""Expert dispatch and combine: what grows with tokens, experts and nodes, and what was not measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.nccl import ExpertModel, Phase
from planner.ir.errors import Unsupported

H100 = ExpertModel.for_interconnect("h100-nvswitch")


@pytest.mark.parametrize(
    ("phase", "nodes", "tokens", "us"),
    [(Phase.DISPATCH, 1, 4096, 496), (Phase.COMBINE, 1, 8192, 1832), (Phase.DISPATCH, 2, 4096, 893), (Phase.COMBINE, 4, 4096, 3587)],
)
def test_measured_kernels_of_deepseeks_shape_are_met(phase, nodes, tokens, us):
    """Hidden 7168, top 8 of 256 experts, 20 multiprocessors; transmit and notify together.  Left-out errors stand in the experiment's results."""
    assert H100.seconds(phase, tokens, 7168, 8, nodes) == pytest.approx(1e-6 * us, rel=0.2)


@given(phase=st.sampled_from(Phase), nodes=st.sampled_from([1, 2, 4, 8]), tokens=st.integers(1, 10**5), top_k=st.integers(1, 16))
def test_more_tokens_experts_or_width_never_take_less_and_more_multiprocessors_never_more(phase, nodes, tokens, top_k):
    seconds = H100.seconds(phase, tokens, 4096, top_k, nodes)
    assert seconds < H100.seconds(phase, 2 * tokens, 4096, top_k, nodes)
    assert seconds <= H100.seconds(phase, tokens, 4096, top_k + 1, nodes)
    assert seconds < H100.seconds(phase, tokens, 7168, top_k, nodes)
    assert seconds >= H100.seconds(phase, tokens, 4096, top_k, nodes, sms=24)


def test_what_was_not_measured_is_refused_by_name():
    with pytest.raises(Unsupported, match="no expert dispatch was measured there; there is"):
        ExpertModel.for_interconnect("a100-nvswitch")
    with pytest.raises(Unsupported, match="dispatch on 3 nodes of h100-nvswitch: measured on 1, 2, 4, 8"):
        H100.seconds(Phase.DISPATCH, 1, 4096, 8, 3)
    with pytest.raises(Unsupported, match="counts are at least 1"):
        H100.seconds(Phase.DISPATCH, 1, 4096, 0)
