"""A process per rank on real GPUs: where ranks share one gloo carries the bytes, where each has one NCCL does.  Nothing here runs without CUDA."""

from __future__ import annotations

import pytest
import torch
from matrix import STEPS, assert_transparent, expected, plan_for, program

from backend import run
from backend.devices.options import DeviceOptions
from planner.ir.traces.trace import check_trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.processes,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FACTOR = 10.0
"""As in test_cuda.py."""


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize(("model", "way"), [("mlp", "data2"), ("gpt", "pipeline2"), ("gpt", "zero3")])
def test_processes_that_share_a_gpu_equal_training_on_one(model: str, way: str, graphs: bool) -> None:
    plan, source = plan_for(model, way), program(model)
    devices, options = dict.fromkeys(range(plan.num_ranks), "cuda:0"), DeviceOptions(graphs=graphs)
    state = source.initial_state(plan.micro_batches)
    outcome = run(plan, state, source.batch, STEPS, gradients=True, devices=devices, device_options=options, timeout_s=120)
    assert_transparent(outcome, expected(model, plan.micro_batches), factor=FACTOR)
    check_trace(plan, outcome.trace)
    assert "nccl" not in outcome.trace.about["collectives"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize(("model", "way"), [("mlp", "data2"), ("gpt", "sequence2"), ("gpt", "zero3")])
def test_processes_with_a_gpu_each_equal_training_on_one(model: str, way: str) -> None:
    plan, source = plan_for(model, way), program(model)
    devices = {rank: f"cuda:{rank}" for rank in range(plan.num_ranks)}
    outcome = run(plan, source.initial_state(plan.micro_batches), source.batch, STEPS, gradients=True, devices=devices, timeout_s=120)
    assert_transparent(outcome, expected(model, plan.micro_batches), factor=FACTOR)
    check_trace(plan, outcome.trace)
    assert outcome.trace.about["collectives"] == "nccl"
