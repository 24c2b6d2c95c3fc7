"""Jobs whose tokens are routed unevenly: the busiest rank's products, exchanges and activations are priced, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Command, commands

from planner.cost.routing import ExpertLoad, Routing
from planner.ir.collective import Collective
from planner.ir.errors import Unsupported
from regista.jobs.advice.asked import advise
from regista.jobs.families import family
from regista.jobs.formats.regista_toml import regista_flags
from regista.jobs.job import Job, Layout, Running
from regista.jobs.memory.activations import layer_bytes
from regista.jobs.predict import predict
from regista.jobs.readers.toml_job import toml_job
from regista.jobs.work import Meeting, Product, layer_forward
from regista.jobs.work.routed import busiest_rank
from tests.regista.refusals.refusal import assert_refused

TOML = """
[model]
family = "grok1-314b"
layers = 4
[cluster]
name = "dgx-h100:1"
[layout]
ep = 8
global_batch = 8
routing = "zipf:1.2"
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def job(load: ExpertLoad | None = None, **at: int) -> Job:
    """Four layers of Grok-1 on 8 devices, an expert on each."""
    model = replace(family("grok1-314b"), layers=4)
    return Job(
        name="",
        machine="h100",
        devices=8,
        model=model,
        layout=Layout(**({"dp": 8, "ep": 8, "global_batch": 8} | at)),
        running=Running(load=load),
    )


def routed(text: str, **given: float) -> ExpertLoad:
    return ExpertLoad(routing=Routing.parse(text), top_k=2, **given)  # type: ignore[arg-type]


HOT = routed("histogram:2,1,1,1,1,1,1,1")


def test_the_busiest_ranks_products_and_exchanges_are_scaled_and_all_other_kernels_stay() -> None:
    even, skewed = job(), job(HOT)
    times = busiest_rank(skewed)
    assert 1.5 < times < 16 / 9, "2 of 9 shares of the first choice, and less of the second"
    changed = [(a, b) for a, b in zip(layer_forward(even), layer_forward(skewed), strict=True) if a != b]
    products = [(a, b) for a, b in changed if isinstance(a, Product) and isinstance(b, Product)]
    exchanges = [(a, b) for a, b in changed if isinstance(a, Meeting) and isinstance(b, Meeting)]
    assert len(products) == 2 and all(a.expert and b == replace(a, m=b.m, casts=b.casts) and b.m == round(a.m * times) for a, b in products)
    assert [(a.collective, b.total_bytes / a.total_bytes) for a, b in exchanges] == [(Collective.ALL_TO_ALL, pytest.approx(times))]
    assert len(changed) == 5, "besides two sweeps: the activation, and tokens on their way"


def test_a_step_grows_with_skew_and_less_so_the_more_experts_lie_on_a_rank() -> None:
    def step_s(load: ExpertLoad | None, ep: int) -> float:
        return predict(job(load, ep=ep)).step_s

    assert step_s(None, 8) < step_s(routed("zipf:0.6"), 8) < step_s(routed("zipf:1.2"), 8)
    grown = [step_s(routed("zipf:1.2"), ep) / step_s(None, ep) for ep in (1, 2, 4, 8)]
    assert grown[0] == 1 and grown == sorted(grown) and grown[-1] > 1.3


def test_activations_of_experts_are_the_busiest_ranks() -> None:
    even, points = layer_bytes(job()), [(busiest_rank(job(load)), layer_bytes(job(load))) for load in (HOT, routed("zipf:1.2"))]
    per_load = [(size - even) / (times - 1) for times, size in points]
    assert per_load[0] == pytest.approx(per_load[1]) and 0 < per_load[0] < even, "a constant, and a part in proportion to the load"


def test_a_capacity_bounds_the_step_and_says_what_is_dropped() -> None:
    free, bounded = predict(job(routed("zipf:1.2"))), predict(job(routed("zipf:1.2", capacity_factor=1.25)))
    assert bounded.step_s < free.step_s and bounded.busiest_rank == pytest.approx(1.25, rel=1e-3)
    assert free.dropped_share == 0 and bounded.dropped_share is not None and bounded.dropped_share > 0.2
    assert predict(job()).busiest_rank is None


def test_a_toml_says_the_routing_and_is_written_as_it_was_read(command: Command, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(TOML)
    ran = command("predict", tmp_path / "job.toml", "--json")
    (row,) = ran.json["jobs"]
    assert row["busiest_rank"] > 2 and row["dropped_share"] == 0
    said = command("predict", tmp_path / "job.toml").out
    assert "quantile 0.9 of routing zipf:1.2: the busiest rank has" in " ".join(said.split())
    load = routed("zipf:1.2", capacity_factor=1.5, quantile=0.8)
    flags = regista_flags(job(load), "dgx-h100:1").flags
    data: dict[str, dict[str, object]] = {"model": {}, "cluster": {}, "layout": {}}
    for name, value in flags.items():
        section, key = name.split(".")
        data[section][key] = value
    assert toml_job(data, "").running.load == load


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ('routing = "zipf:-1"', "exponent -1; it is between 0"),
        ('routing = "histogram:1,2,3"', "histogram of 3 experts for a layer of 8"),
        ("routing = 1.2", "routing = 1.2; write text"),
        ('routing = "zipf:1.2"\nrouting_quantile = 2', "quantile 2; it is between 0 and 1"),
        ('routing = "zipf:1.2"\ncapacity_factor = -1', "capacity factor -1"),
        ('routing = "zipf:1.2"\ncapacity_factor = "much"', "capacity_factor = 'much'; a number"),
        ("routing_quantile = 0.5", "routing_quantile without routing"),
    ],
)
def test_a_routing_that_does_not_fit_is_refused(command: Command, tmp_path: Path, new: str, says: str) -> None:
    (tmp_path / "job.toml").write_text(TOML.replace('routing = "zipf:1.2"', new))
    assert_refused(command, tmp_path, "predict", tmp_path / "job.toml", "-o", tmp_path / "out.csv", says=says)


def test_a_routing_without_experts_and_more_experts_than_tokens_are_refused() -> None:
    dense = Job(
        name="", machine="h100", devices=8, model=family("llama3-8b"), layout=Layout(dp=8, global_batch=8), running=Running(load=HOT)
    )
    with pytest.raises(Unsupported, match="routing for a model without experts"):
        predict(dense)
    short = job(HOT)
    with pytest.raises(Unsupported, match="8 experts for 4 tokens"):
        predict(replace(short, model=replace(short.model, seq=4), layout=replace(short.layout, ep=1)))


@pytest.mark.thorough
def test_advice_for_a_crowded_job_shares_experts_among_fewer_devices_and_keeps_the_routing(tmp_path: Path) -> None:
    text = (
        TOML.replace("grok1-314b", "deepseek-v3").replace("layers = 4", "layers = 8\ndense_layers = 0").replace("dgx-h100:1", "dgx-h100:8")
    )
    (tmp_path / "job.toml").write_text(text.replace("ep = 8", "ep = 64").replace("= 8\nrouting", "= 512\nzero = 1\nrouting"))
    found = advise(str(tmp_path / "job.toml"), seconds=60.0, tries=3)
    assert found.job.running.load is not None and found.better is not None
    assert found.better.job.layout.ep < 64 and found.better.job.running.load == found.job.running.load
