"""Exchanges of experts: sent once per place, beside computing, and made again with their part of a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ir.collective import Collective
from planner.ir.errors import Unsupported
from regista.jobs.families import family
from regista.jobs.formats.canonical import differences
from regista.jobs.formats.regista_toml import regista_flags
from regista.jobs.job import Job, Layout, Precision, Recompute, Running
from regista.jobs.machines import load_machine
from regista.jobs.memory import stage_memory
from regista.jobs.pipeline import schedule_of
from regista.jobs.predict import predict
from regista.jobs.prices import Prices
from regista.jobs.readers.toml_job import toml_job
from regista.jobs.recipes import Recipe
from regista.jobs.work import layer_forward
from regista.jobs.work.kernels import Group, Meeting, Product, Sweep


def job(**running: object) -> Job:
    at = Layout(tp=1, dp=64, ep=64, etp=1, global_batch=512)
    return Job(
        name="",
        machine="h100",
        devices=64,
        model=replace(family("deepseek-v3"), layers=4, dense_layers=0),
        layout=at,
        running=Running(distributed_optimizer=True, **running),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("size", "chosen", "share"),
    [(64, 0, 1.0), (64, 1, 1.0), (16, 2, (1 + 1 / 2) / 2), (64, 8, 8 * (1 - (7 / 8) ** 8) / 8), (8, 8, 8 * (1 - (7 / 8) ** 8) / 8)],
)
def test_a_token_is_sent_once_to_each_place_that_it_goes_to(size: int, chosen: int, share: float) -> None:
    """Of 64 devices the places are 8 nodes, of 16 two, of 8 the devices of one node."""
    assert Meeting(Collective.ALL_TO_ALL, 1.0, Group(size, 1), chosen=chosen).share_sent(8) == pytest.approx(share)


def test_exchanges_sent_once_or_beside_computing_make_a_step_shorter() -> None:
    plain, once, beside = (predict(job(**given)).step_s for given in ({}, {"expert_once": True}, {"overlap_experts": True}))
    assert once < plain and beside < plain


def test_a_part_with_experts_that_is_made_again_takes_time_and_is_not_kept() -> None:
    kept, again = job(), job(recompute=Recompute.EXPERTS)
    assert predict(again).step_s > predict(kept).step_s
    machine = load_machine("h100")
    bytes_kept, bytes_again = (stage_memory(each, machine, schedule_of(each), 0).device_bytes[1] for each in (kept, again))
    assert bytes_again < bytes_kept


def test_a_product_in_few_bits_is_launched_with_its_cast_and_the_order_of_its_scales() -> None:
    prices = {
        recipe: Prices(machine=load_machine("gb200"), running=Running(precision=precision, recipe=recipe), devices=64)
        for precision, recipe in ((Precision.BF16, Recipe.DELAYED), (Precision.FP8, Recipe.TENSORWISE), (Precision.FP8, Recipe.MX))
    }
    cast, again = Product(64, 64, 64, count=8, casts=64), Product(64, 64, 64, count=8)
    said = {recipe: (priced.launches(cast), priced.launches(again)) for recipe, priced in prices.items()}
    assert said == {Recipe.DELAYED: (8, 8), Recipe.TENSORWISE: (16, 8), Recipe.MX: (32, 24)}


def test_experts_that_a_graph_leaves_to_the_host_take_its_time_where_their_kernels_are_short() -> None:
    """Four experts per device and 64 tokens for each: the graph's part has no host, the experts' part has."""
    few = replace(job(), layout=Layout(tp=1, dp=64, ep=64, etp=1, global_batch=512), model=replace(job().model, seq=64))
    whole, part, none = (
        predict(replace(few, running=replace(few.running, graphs=graphs, host_experts=host))).step_s
        for graphs, host in ((True, False), (True, True), (False, False))
    )
    assert whole < part < none


def test_the_host_waits_for_counts_so_no_other_part_hides_its_launches() -> None:
    """Long attention does not hide the launches of experts, and one exchange beside another micro-batch's computing does."""
    prices = Prices(machine=load_machine("h100"), running=Running(), devices=8)
    long, short = Sweep(1e9), Sweep(1.0, count=100, expert=True)
    apart_s = prices.pass_s([long]) + prices.pass_s([short])
    assert prices.pass_s([long, short]) == pytest.approx(apart_s)
    beside = Meeting(Collective.ALL_TO_ALL, 1.0, Group(8, 1), beside=True)
    assert prices.pass_s([long, short, beside]) < apart_s


def test_biases_and_clamps_of_experts_take_passes_unless_they_are_in_their_products() -> None:
    at = Layout(tp=1, dp=8, ep=8, etp=1, global_batch=8)
    of = Job(name="", machine="h100", devices=8, model=replace(family("gpt-oss-120b"), layers=2), layout=at, running=Running())
    plain = replace(of, model=replace(of.model, expert_bias=False, clamped=False))
    fused = replace(of, running=Running(fused_experts=True))
    assert predict(of).step_s > predict(fused).step_s == predict(replace(plain, running=Running(fused_experts=True))).step_s
    # 28 bytes per element of four experts' tokens, 16 behind the first product: forward.
    extra = sum(k.size_bytes for k in layer_forward(of) if isinstance(k, Sweep)) - sum(
        k.size_bytes for k in layer_forward(plain) if isinstance(k, Sweep)
    )
    assert extra == 4096 * 4 * 2880 * (28 + 16)


def test_tokens_are_sorted_where_a_device_has_several_experts() -> None:
    several, one = job(sort_experts=True), replace(job(sort_experts=True), layout=replace(job().layout, dp=256, ep=256), devices=256)
    for of, passes in ((several, 4), (one, 0)):
        plain = replace(of, running=replace(of.running, sort_experts=False))
        extra = [sum(k.size_bytes for k in layer_forward(each) if isinstance(k, Sweep)) for each in (of, plain)]
        assert extra[0] - extra[1] == passes * 4096 * 8 * 7168 * 2


@pytest.mark.parametrize("knob", ["host_experts", "fused_experts", "sort_experts"])
def test_knobs_of_experts_are_refused_where_they_mean_nothing(knob: str) -> None:
    dense = Job(
        name="",
        machine="h100",
        devices=1,
        model=family("llama3-8b"),
        layout=Layout(),
        running=Running(graphs=True, **{knob: True}),  # type: ignore[arg-type]
    )
    with pytest.raises(Unsupported, match=f"{knob} for a model without experts"):
        predict(dense)
    with pytest.raises(Unsupported, match="host_experts without graphs"):
        predict(job(host_experts=True))


def test_a_toml_of_a_job_has_its_knobs_of_experts_and_is_read_back_as_it() -> None:
    of = replace(
        job(graphs=True, host_experts=True, expert_once=True, overlap_experts=True, fused_experts=True, sort_experts=True),
        name="deepseek-v3",
    )
    written = regista_flags(of, "dgx-h100:8")
    assert not written.lost
    data: dict[str, dict[str, object]] = {}
    for name, value in written.flags.items():
        section, _, key = name.partition(".")
        data.setdefault(section, {})[key] = value
    assert differences(toml_job(data, "job"), of) == ()
