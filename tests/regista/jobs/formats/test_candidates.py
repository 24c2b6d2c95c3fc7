"""What is proposed can be said: each candidate of a framework's space that its settings express is read back as the same job."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from regista.jobs.advice.space import candidates, space_of
from regista.jobs.checks import checked
from regista.jobs.families import family
from regista.jobs.formats import Asked, Form, flags_text, read_framework, write_flags
from regista.jobs.formats.canonical import differences
from regista.jobs.job import Layout
from regista.jobs.machines import load_machine
from tests.regista.jobs.formats.test_torchtitan_and_deepspeed import LLAMA

AT = Asked(cluster="dgx-h100:2")
SETTINGS = {
    Form.MEGATRON: (
        "job.args",
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu "
        "--seq-length 8192 --vocab-size 128256 --bf16 --attention-backend unfused --global-batch-size 64 --pipeline-model-parallel-size 2",
    ),
    Form.TORCHTITAN: ("job.toml", '[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[training]\nlocal_batch_size = 4\nseq_len = 8192\n'),
    Form.DEEPSPEED: ("ds.json", '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}'),
}


@pytest.mark.parametrize("step", [67, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("form", list(SETTINGS), ids=lambda form: form.name.lower())
def test_each_candidate_that_settings_express_is_read_back_as_itself(form: Form, step: int, tmp_path: Path) -> None:
    name, text = SETTINGS[form]
    path, machine = tmp_path / name, load_machine("h100")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    path.write_text(text)
    job = read_framework(str(path), AT).job
    checked(job, machine)
    own = set(write_flags(job, form, "").lost)
    expressed = 0
    for one in islice(candidates(job, machine, space_of(form, job)), 0, None, step if form is not Form.DEEPSPEED else 1):
        written = write_flags(one, form, "")
        if set(written.lost) <= own:
            expressed += 1
            path.write_text(flags_text(written, one, form))
            assert differences(one, read_framework(str(path), AT).job) == (), one.layout
    assert expressed >= 10


def test_a_candidate_keeps_what_is_trained_and_on_how_many_devices() -> None:
    path = SETTINGS[Form.MEGATRON][1]
    job = read_framework(path, AT).job
    job = replace(job, model=family("qwen3-30b-a3b"), layout=replace(Layout(), dp=16, global_batch=64))
    for one in islice(candidates(job, load_machine("h100"), space_of(Form.MEGATRON, job)), 0, None, 37):
        assert (one.model, one.devices, one.layout.global_batch, one.layout.devices) == (job.model, 16, 64, 16)
        assert one.running.precision is job.running.precision
