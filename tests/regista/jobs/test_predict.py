"""Jobs as people write them: what is read, what a Plan of it is, what is refused, and that one bad row stops no other."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Command, commands

from planner.ir.errors import RegistaError
from planner.schedule.classic import interleaved
from regista.jobs.checks import checked
from regista.jobs.families import family, family_names
from regista.jobs.intervals import features, is_like
from regista.jobs.job import Job, Layout, Precision, Recompute, Running
from regista.jobs.machines import load_machine
from regista.jobs.memory import stage_memory, stash_bytes
from regista.jobs.pipeline import schedule_of
from regista.jobs.predict import predict
from regista.jobs.work.chunks import chunk_layers, chunks_of
from tests.regista.refusals.refusal import assert_refused

TOML = """
[model]
family = "llama3-8b"
[cluster]
name = "dgx-h100:2"
[layout]
tp = 2
pp = 2
dp = 4
zero = 1
micro_batch = 1
global_batch = 16
sequence_parallel = true
"""
HEADER = "title,hardware,precision,eff_gpus,eff_layers,eff_seq,eff_tp,eff_pp,eff_cp,eff_dp,eff_mbs,eff_gbs,hidden,ffn,heads,kv_heads,vocab,gated\n"
ROW = "tiny,H100,BF16,8,4,1024,2,1,1,4,1,8,1024,4096,16,16,50257,false\n"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return commands(capsys)


def job(**layout: object) -> Job:
    given = {"tp": 2, "pp": 2, "dp": 2, "micro_batch": 1, "global_batch": 16, "sequence_parallel": True} | layout
    at = Layout(**given)  # type: ignore[arg-type]
    running = Running(distributed_optimizer=True)
    return Job(name="job", machine="h100", devices=at.devices, model=family("llama3-8b"), layout=at, running=running)


def test_a_toml_is_predicted_with_an_interval_a_plan_and_the_bytes_of_each_stage(command: Command, tmp_path: Path):
    (tmp_path / "job.toml").write_text(TOML)
    ran = command("predict", tmp_path / "job.toml", "-o", tmp_path / "out.csv", "--json")
    assert ran.code == 0
    (row,) = ran.json["jobs"]
    assert row["step_low_s"] < row["step_s"] < row["step_high_s"]
    assert len(row["peak_bytes"]) == 2 and max(row["peak_bytes"]) == row["peak_bytes_max"] <= row["device_bytes_low"]
    assert row["fits"] is True and row["refused"] is None and row["kind"] == "sim" and 0 < row["mfu"] < 1
    assert row["plan_covers"] == "one rank of each of 2 stages, for 16 devices" and len(row["plan_id"]) == 16
    assert row["tokens_per_s_per_gpu"] == pytest.approx(16 * 8192 / row["step_s"] / 16)
    (written,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))
    assert float(written["step_s"]) == pytest.approx(row["step_s"], rel=1e-5)


def test_a_bad_row_is_refused_by_its_knob_and_stops_no_other(command: Command, tmp_path: Path):
    bad = {
        "eff_gpus": ROW.replace(",8,4,1024", ",16,4,1024"),
        "negative": ROW.replace(",4096,", ",-4096,"),
        "hardware": ROW.replace("H100", "V9"),
        "precision": ROW.replace("BF16", "INT3"),
        "no number": ROW.replace("50257", "many"),
        "too many": ROW.replace(",8,1024,4096", ",1e7,1024,4096"),
        "too long": ROW.replace("\n", ",4\n"),
        "no number at all": ROW.replace(",4,1024", ",nan,1024"),
        "no UTF-8": ROW.replace("tiny", "ti\udcfcny"),
    }
    (tmp_path / "jobs.csv").write_text(HEADER + ROW + "".join(bad.values()) + ROW, encoding="utf-8", errors="surrogateescape")
    ran = command("predict", tmp_path / "jobs.csv", "--json")
    assert ran.code == 0
    rows = ran.json["jobs"]
    assert [row["refused"] is None for row in rows] == [True, *[False] * len(bad), True]
    assert rows[0]["step_s"] == rows[-1]["step_s"] and (ran.json["predicted"], ran.json["refused"]) == (2, len(bad))
    knobs = ("product must be", "ffn = -4096", "hardware 'V9'", "precision 'INT3'", "vocab = 'many'", "passes per step", "cells for")
    odd = ("eff_layers = nan; a number", "column 'title' of the row holds a byte that is no UTF-8")
    for row, says in zip(rows[1:-1], (*knobs, *odd), strict=True):
        assert says in row["refused"]
    assert rows[len(bad)]["row"] == len(bad) + 1 and rows[len(bad)]["job"] == "ti\\xfcny"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("llama3-8b", "llama9", "family 'llama9' is unknown; known are"),
        ("dp = 4", "dp = 3", "= 12 is not the 16 devices"),
        ("tp = 2", "tp = -2", "tp = -2; at least 1"),
        ("zero = 1", "zero = 9", "zero = 9; 0 to 3"),
        ("zero = 1", "colour = 1", r"unknown keys \['colour'\]"),
        ("global_batch = 16", "global_batch = 15", "global_batch 15 is no multiple"),
        ("zero = 1", "zero = 1\nep = 2", "ep 2 for a model without experts"),
        ("zero = 1", "zero = 1\noverlap_experts = true", "overlap_experts for a model without experts"),
        ("zero = 1", "zero = 1\nexpert_once = true", "expert_once for a model without experts"),
        ("zero = 1", 'zero = 1\nrecompute = "experts"', "recompute experts for a model without experts"),
        ("zero = 1", 'zero = 1\nprecision = "fp8"', "a100 has no rate for fp8"),
        ("zero = 1", "zero = 1\nvp = 3\nlayers_of_chunks = [1, 2]", "layers_of_chunks"),
        ("[cluster]", "[claster]", r"section \[cluster\] is missing"),
        ('[model]\nfamily = "llama3-8b"', "model = 3", r"model = 3; a section is needed: \[model\], and below it its keys"),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_its_knob(command: Command, tmp_path: Path, old: str, new: str, says: str):
    text = TOML.replace(old, new, 1)
    (tmp_path / "job.toml").write_text(text.replace("dgx-h100", "dgx-a100") if "fp8" in new else text)
    assert_refused(command, tmp_path, "predict", tmp_path / "job.toml", "-o", tmp_path / "out.csv", says=says)


def test_a_csv_of_other_columns_is_refused_with_those_that_it_lacks(command: Command, tmp_path: Path):
    (tmp_path / "jobs.csv").write_text(HEADER.replace("kv_heads", "keys") + ROW)
    assert_refused(command, tmp_path, "predict", tmp_path / "jobs.csv", says=r"columns \['kv_heads'\] are missing")


def test_a_csv_of_a_header_alone_is_refused_with_what_it_lacks(command: Command, tmp_path: Path):
    (tmp_path / "jobs.csv").write_text(HEADER + "\n")
    assert_refused(command, tmp_path, "predict", tmp_path / "jobs.csv", says="a header and no row below it; write one row per job")


def test_a_header_that_is_no_text_is_refused_with_the_place_of_the_byte(command: Command, tmp_path: Path):
    (tmp_path / "jobs.csv").write_bytes(HEADER.replace("ffn", "f\u00fcn").encode("latin-1") + ROW.encode())
    at = HEADER.index("ffn") + 2
    assert_refused(command, tmp_path, "predict", tmp_path / "jobs.csv", says=f"byte 0xfc in line 1, column {at} is no UTF-8")


def test_a_csv_with_a_column_twice_is_refused(command: Command, tmp_path: Path):
    (tmp_path / "jobs.csv").write_text(HEADER.replace("\n", ",vocab\n") + ROW.replace("\n", ",4\n"))
    assert_refused(command, tmp_path, "predict", tmp_path / "jobs.csv", says=r"columns \['vocab'\] stand there more than once")


def test_every_family_has_the_parameters_that_its_source_states():
    with (Path(__file__).parents[3] / "regista/jobs/data/families.csv").open() as file:
        stated = {row["family"]: int(row["parameters"]) for row in csv.DictReader(file)}
    assert set(stated) == set(family_names())
    for name, parameters in stated.items():
        assert family(name).parameters == pytest.approx(parameters, rel=0.01), name


def test_layers_that_do_not_divide_are_spread_and_embedding_and_loss_may_count_as_one_each():
    model = replace(family("llama3.1-405b"))
    at = Layout(tp=8, pp=8, vp=8, cp=2, dp=4, global_batch=256)
    one = Job(name="", machine="h100", devices=512, model=model, layout=at, running=Running())
    assert chunk_layers(one) == (1, *[2] * 62, 1)
    assert chunk_layers(replace(one, layout=replace(at, pp=4, vp=1, dp=8))) == (31, 32, 32, 31)
    assert chunk_layers(replace(one, model=replace(model, layers=127), layout=replace(at, pp=4, vp=1, dp=8))) == (32, 32, 32, 31)


def test_the_plan_holds_a_stash_per_micro_batch_in_flight_and_more_devices_never_need_more_memory_each():
    machine = load_machine("h100")
    one = checked(job(pp=4, vp=2, tp=1, sequence_parallel=False, dp=1), machine)
    plan = predict(one).plan
    chunks = chunks_of(one)
    order = interleaved(4, 16, 2).orders[0]
    held = most = 0
    for action in order:
        if action.stage == 0:
            held += 1 if action.kind.value == "F" else -1
            most = max(most, held)
    assert plan.regst["stash.0"].quota == most > 1
    assert plan.block_bytes(plan.regst["stash.0"]) == int(stash_bytes(one, chunks[0]))
    small, large = job(dp=2, global_batch=32), job(dp=8, global_batch=128)
    for stage in range(2):
        few, many = (stage_memory(j, machine, schedule_of(j), stage).peak_bytes for j in (small, large))
        assert many < few


def test_interleaving_needs_micro_batches_in_whole_rounds_of_pp_or_of_the_group_that_is_given():
    # The check divided by the number of rounds in place of their size: 6 micro-batches on 4 stages passed, which Megatron refuses.
    machine, at = load_machine("h100"), {"pp": 4, "vp": 2, "tp": 1, "sequence_parallel": False, "dp": 1}
    with pytest.raises(RegistaError, match="vp 2: 6 micro-batches do not divide into rounds of 4 on pp 4"):
        checked(job(global_batch=6, **at), machine)
    with pytest.raises(RegistaError, match="rounds of 3 on pp 4"):
        checked(job(global_batch=6, vp_group=3, **at), machine)
    one = checked(job(global_batch=6, vp_group=6, **at), machine)
    assert [action.stage for action in schedule_of(one).orders[0][:8]] == [0] * 6 + [4] * 2
    twelve = job(global_batch=12, vp_group=6, **at)
    assert [action.stage for action in schedule_of(twelve).orders[0][:8]] == [0] * 6 + [4] * 2


def test_recomputation_and_splitting_hold_fewer_bytes_and_recomputation_takes_longer():
    plain, full = job(), replace(job(), running=Running(distributed_optimizer=True, recompute=Recompute.FULL))
    kept, again = predict(plain), predict(full)
    assert max(s.peak_bytes for s in again.stages) < max(s.peak_bytes for s in kept.stages)
    assert kept.step_s < again.step_s < 1.5 * kept.step_s
    whole = predict(replace(plain, running=Running(distributed_optimizer=False)))
    assert min(w.peak_bytes - k.peak_bytes for w, k in zip(whole.stages, kept.stages, strict=True)) > 0


def test_a_machine_without_published_steps_has_the_constants_of_another_and_a_wide_interval():
    own, other = load_machine("h100"), load_machine("h200")
    assert other.like == "h100" and dict(other.values) == dict(own.values)
    assert other.memory_bytes_per_s > own.memory_bytes_per_s
    wide, narrow = predict(replace(job(), machine="h200")), predict(job())
    assert wide.step_high_s / wide.step_s > narrow.step_high_s / narrow.step_s > 1.0
    assert wide.step_s < narrow.step_s


def test_a_model_that_was_measured_has_the_interval_of_points_that_its_constants_did_not_see():
    here = features(job())
    assert is_like(here, features(job(dp=8, global_batch=64)))
    assert not is_like(here, features(replace(job(), model=family("llama3.1-70b"))))
    assert not is_like(here, features(replace(job(), running=Running(precision=Precision.FP8))))


def test_an_encoder_and_a_decoder_have_layers_of_their_own_and_one_stack_is_itself():
    plain = replace(family("gpt3-5b"), layers=12, hidden=768, ffn=3072, heads=12, kv_heads=12, head_dim=64, seq=128)
    both = replace(plain, encoder=12, encoder_seq=512)
    assert plain.stacks == ((plain, 12),)
    (encoder, first), (decoder, second) = both.stacks
    assert (first, second, encoder.seq, decoder.seq, decoder.crossed) == (12, 12, 512, 128, 512) and not encoder.causal
    at = Layout(dp=8, micro_batch=4, global_batch=32)
    one, two = (Job(name="", machine="a100", devices=8, model=m, layout=at, running=Running()) for m in (plain, both))
    assert predict(one).step_s < predict(two).step_s
    with pytest.raises(RegistaError, match="pp 2, cp 1 with an encoder of 12 layers"):
        predict(replace(two, layout=replace(at, pp=2, dp=4)))


def test_eight_bits_are_quicker_and_a_device_without_their_rate_is_refused():
    low = replace(job(), running=Running(distributed_optimizer=True, precision=Precision.FP8))
    assert predict(low).step_s < predict(job()).step_s
    with pytest.raises(RegistaError, match="a100 has no rate for fp8"):
        predict(replace(low, machine="a100"))
