"""Exchanges of experts: sent once per place, beside computing, and made again with their part of a layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ir.collective import Collective
from regista.jobs.families import family
from regista.jobs.job import Job, Layout, Recompute, Running
from regista.jobs.machines import load_machine
from regista.jobs.memory import stage_memory
from regista.jobs.pipeline import schedule_of
from regista.jobs.predict import predict
from regista.jobs.work.kernels import Group, Meeting


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
