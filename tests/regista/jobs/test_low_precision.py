"""Products in 8 and 4 bits: recipes cost what they say, devices that cannot perform one refuse it, and fewer bytes are held and sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Command, commands

from planner.ir.collective import Collective
from planner.ir.errors import RegistaError
from regista.jobs.checks import checked
from regista.jobs.families import family
from regista.jobs.job import Job, Layout, Precision, Running
from regista.jobs.machines import load_machine
from regista.jobs.memory import Owner, chunk_parameters, stage_memory
from regista.jobs.pipeline import schedule_of
from regista.jobs.predict import predict
from regista.jobs.prices import Prices
from regista.jobs.recipes import Recipe, casting
from regista.jobs.work import Group, Product, chunks_of, layer_backward, layer_forward
from tests.regista.refusals.refusal import assert_refused

TOML = """
[model]
family = "llama3-8b"
[cluster]
name = "dgx-h100:1"
[layout]
tp = 2
precision = "fp8-mixed"
recipe = "blockwise"
"""


def job(machine: str = "gb200", **running: object) -> Job:
    at = Layout(tp=2, dp=4, global_batch=8, sequence_parallel=True)
    how = {"precision": Precision.FP8, "distributed_optimizer": True} | running
    return Job(name="", machine=machine, devices=8, model=family("llama3-8b"), layout=at, running=Running(**how))  # type: ignore[arg-type]


def test_a_recipe_costs_what_its_casts_read_and_write_and_four_bits_are_quicker_than_eight():
    seconds = {r: predict(job(recipe=r)).step_s for r in Recipe if r is not Recipe.NVFP4}
    assert seconds[Recipe.DELAYED] < seconds[Recipe.TENSORWISE] < seconds[Recipe.ROWWISE]
    assert seconds[Recipe.DELAYED] < seconds[Recipe.MX] < seconds[Recipe.BLOCKWISE]
    four = predict(job(precision=Precision.NVFP4, recipe=Recipe.NVFP4))
    half = predict(job(precision=Precision.BF16))
    assert four.step_s < min(seconds.values()) < half.step_s
    assert four.step_high_s / four.step_s > half.step_high_s / half.step_s, (
        "fewer steps in 4 bits have been published, and none of this model"
    )


def test_four_bits_gain_what_the_data_sheet_has_for_them():
    gains = {}
    for name in ("gb200", "gb300"):
        eight, four = (
            Prices(machine=load_machine(name), running=Running(precision=p, recipe=r), devices=8).product_s(Product(8192, 8192, 8192))
            for p, r in ((Precision.FP8, Recipe.MX), (Precision.NVFP4, Recipe.NVFP4))
        )
        gains[name] = eight / four
    assert gains["gb200"] == pytest.approx(load_machine("gb200").values["four_gain"])
    assert gains["gb300"] == pytest.approx(1.5 * gains["gb200"]), "three times the rate of 8 bits in place of twice"


def test_operands_are_cast_once_each_for_both_of_their_products():
    prices = Prices(machine=load_machine("gb200"), running=job().running, devices=8)
    forward = [p for p in layer_forward(job()) if isinstance(p, Product)]
    backward = [p for p in layer_backward(job()) if isinstance(p, Product)]
    assert sum(p.casts for p in forward) == sum(p.m * p.k for p in forward)
    assert sum(p.casts for p in backward) == sum(p.m * p.n for p in forward)
    plain, cast = (prices.product_s(replace(forward[0], casts=n)) for n in (0, 10**6))
    assert cast - plain == pytest.approx(4e6 / (8e12 * prices.machine.values["sweep_share"]))


def test_products_that_multiply_scales_of_blocks_are_refused_where_the_device_has_none():
    for recipe, precision in ((Recipe.MX, Precision.FP8), (Recipe.NVFP4, Precision.NVFP4)):
        one = job(recipe=recipe, precision=precision)
        checked(one, load_machine("gb200"))
        with pytest.raises(RegistaError, match=r"do not multiply scales of blocks|h100 has no rate for nvfp4"):
            checked(replace(one, machine="h100"), load_machine("h100"))
    with pytest.raises(RegistaError, match="precision fp8 with recipe nvfp4"):
        checked(job(recipe=Recipe.NVFP4), load_machine("gb200"))


def test_parameters_in_eight_bits_alone_are_held_and_gathered_in_fewer_bytes():
    both, alone, wide = job(), job(low_params=True), job(precision=Precision.BF16)
    (chunk,) = chunks_of(both)
    counts = chunk_parameters(both, chunk)
    assert counts.held_bytes(alone) < counts.held_bytes(wide) + 1 < counts.held_bytes(both)
    assert counts.held_bytes(both) - counts.held_bytes(wide) == pytest.approx(2 * counts.low)
    assert counts.dense_sent_bytes(alone) == pytest.approx(counts.dense_sent_bytes(both) - counts.low)
    assert casting(Recipe.NVFP4).kept_bytes < casting(Recipe.MX).kept_bytes
    held = [stage_memory(j, load_machine("gb200"), schedule_of(j), 0).allocated[Owner.ACTIVATIONS] for j in (both, wide)]
    assert held[0] < held[1]


def test_a_graph_has_no_hosts_between_its_collectives_and_the_wire_takes_what_nccl_takes():
    group = Group(4, 1)
    eager, graphed = (Prices(machine=load_machine("gb200"), running=Running(graphs=on), devices=8) for on in (False, True))
    size = 2.0**24
    assert graphed.meeting_s(Collective.ALL_GATHER, size, group) == graphed.wire_s(Collective.ALL_GATHER, size, group)
    waited_s = eager.meeting_s(Collective.ALL_GATHER, size, group) - graphed.meeting_s(Collective.ALL_GATHER, size, group)
    assert waited_s == pytest.approx(2e-6 * eager.machine.values["meet_us"])
    assert graphed.wire_s(Collective.ALL_GATHER, 8.0, group) < 20e-6


def test_all_owners_of_a_stage_have_names_and_their_sum_is_the_most_that_is_asked_of_the_device():
    one = job(low_params=True)
    (stage,) = predict(one).stages
    assert set(stage.owners) >= {"parameters", "main gradients", "optimizer: masters", "activations", "CUDA context", "NCCL buffers"}
    assert sum(stage.owners.values()) == pytest.approx(stage.device_bytes[1], abs=len(stage.owners))
    split = replace(one, layout=replace(one.layout, tp=1, dp=8, fsdp=8, sequence_parallel=False))
    (parts,) = predict(split).stages
    assert parts.owners["gathered parameters"] > 0 and parts.owners["parameters"] < stage.owners["parameters"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def test_a_toml_says_its_recipe_and_owners_come_out(command: Command, tmp_path: Path):
    (tmp_path / "job.toml").write_text(TOML)
    ran = command("predict", tmp_path / "job.toml", "--json")
    (row,) = ran.json["jobs"]
    assert ran.code == 0 and row["refused"] is None
    assert sum(row["owners"][0].values()) == pytest.approx(row["device_bytes_high"], abs=20)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("blockwise", "mx", "products of h100 do not multiply scales of blocks"),
        ("fp8-mixed", "bf16", "recipe = 'blockwise' with precision bf16"),
        ("blockwise", "magic", "recipe = 'magic' is unknown; known are delayed"),
        ('"fp8-mixed"\nrecipe = "blockwise"', '"nvfp4"', "h100 has no rate for nvfp4"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_by_its_knob(command: Command, tmp_path: Path, old: str, new: str, says: str):
    (tmp_path / "job.toml").write_text(TOML.replace(old, new))
    assert_refused(command, tmp_path, "predict", tmp_path / "job.toml", says=says)
