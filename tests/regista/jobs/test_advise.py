"""Advice on a job: its first line names the fault, a better configuration keeps what is trained and is as much quicker as it claims, and a screen has
40 lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Command, commands

from regista.jobs.advice import Limits, advise
from regista.jobs.advice.faults import Fault
from regista.jobs.families import family
from regista.jobs.formats import Asked, flags_text, read_framework
from regista.jobs.formats.canonical import differences
from regista.jobs.predict import predict

GPT = "--num-layers 8 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --vocab-size 50257 --bf16"
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 8192 --vocab-size 128256 --swiglu --untie-embeddings-and-output-weights --position-embedding-type rope --bf16 "
    "--attention-dropout 0 --hidden-dropout 0"
)
ZERO = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
FEW = Limits(seconds=60.0, predictions=2)
BAD = {
    Fault.MEMORY: (f"{LLAMA} --micro-batch-size 4 --global-batch-size 64", "dgx-h100:1"),
    Fault.RECOMPUTE: (f"{LLAMA} --tensor-model-parallel-size 2 --sequence-parallel --global-batch-size 64 {ZERO} {FULL}", "dgx-h100:1"),
    Fault.TENSOR_ACROSS_NODES: (
        f"{GPT} --tensor-model-parallel-size 16 --global-batch-size 8 {ZERO}",
        "dgx-h100:2",
    ),
    Fault.BUBBLE: (f"{LLAMA} --pipeline-model-parallel-size 8 --global-batch-size 16 {ZERO}", "dgx-h100:2"),
}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


@pytest.mark.parametrize("fault", list(BAD))
def test_the_first_line_names_the_fault_and_the_better_job_is_as_much_quicker_as_it_claims(fault: Fault) -> None:
    text, cluster = BAD[fault]
    advice = advise(read_framework(text, Asked(cluster=cluster)), cluster, FEW)
    assert advice.verdict.startswith(fault.value)
    better = advice.better
    assert better is not None and better.written.lost == ()
    again = read_framework(flags_text(better.written, better.job, advice.form), Asked(cluster=cluster)).job
    assert differences(better.job, again) == ()
    done = predict(again)
    assert done.step_s == better.prediction.step_s and done.fits
    if fault is not Fault.MEMORY:
        assert better.gain == pytest.approx(1 - done.step_s / advice.prediction.step_s) and better.gain > 0.01
    job = advice.job
    assert (again.devices, again.layout.global_batch, again.running.precision) == (
        job.devices,
        job.layout.global_batch,
        job.running.precision,
    )
    assert replace(again.model, name="") == replace(job.model, name="")


@pytest.mark.thorough
def test_settings_are_left_where_nothing_better_is_found() -> None:
    text, cluster = BAD[Fault.RECOMPUTE]
    first = advise(read_framework(text, Asked(cluster=cluster)), cluster, Limits(seconds=60.0, predictions=5))
    assert first.better is not None
    kept = flags_text(first.better.written, first.better.job, first.form)
    second = advise(read_framework(kept, Asked(cluster=cluster)), cluster, Limits(seconds=60.0, predictions=5))
    assert second.better is None and second.findings == ()
    assert second.verdict == "no fault and nothing better was found"
    assert flags_text(second.written, second.job, second.form) == kept


def test_a_screen_has_at_most_40_lines_and_its_json_the_same_facts(command: Command, tmp_path: Path) -> None:
    text, cluster = BAD[Fault.BUBBLE]
    (tmp_path / "job.args").write_text(f"{text} --qk-layernorm --lr 1e-4 --seed 3")
    arguments = ("advise", tmp_path / "job.args", "--cluster", cluster, "--tries", 2)
    ran = command(*arguments, "-o", tmp_path / "answer.html")
    assert ran.code == 0
    assert len(ran.out.splitlines()) <= 40
    assert ran.out.startswith("job: bubble of ")
    assert "not mapped" in ran.out and "--qk-layernorm" in ran.out and "no certificate" in ran.out
    assert "bubble of " in (tmp_path / "answer.html").read_text()
    told = command(*arguments, "--json", "-o", tmp_path / "better.args").json
    assert told["kind"] == "sim" and told["faults"][0]["fault"] == "bubble" and told["not_mapped"] == ["--qk-layernorm"]
    assert told["better"]["text"] == (tmp_path / "better.args").read_text()
    assert told["step_low_s"] < told["step_s"] < told["step_high_s"] and told["search"]["predicted"] == 2


def test_a_job_that_fits_if_memory_is_not_fragmented_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}')
    asked = Asked(cluster="dgx-h100:2", family=family("llama3.1-8b"), seq=8192)
    advice = advise(read_framework(str(tmp_path / "ds.json"), asked), "dgx-h100:2", Limits(seconds=60.0, predictions=1))
    assert advice.prediction.fits and advice.findings[0].fault is Fault.TIGHT
    assert advice.verdict.startswith("may not fit: each device needs 78.5 GiB to 84.8 GiB of 79.2 GiB")
