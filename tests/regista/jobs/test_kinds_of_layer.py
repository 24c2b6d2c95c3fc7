"""Layers that are not all alike, and parameters that lie split: multi-latent attention, first layers without experts, FSDP with tensor parallelism."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ir.errors import RegistaError
from regista.jobs.checks import checked
from regista.jobs.families import family
from regista.jobs.job import Job, Layout, Model, Part, Running
from regista.jobs.machines import load_machine
from regista.jobs.memory import Owner, chunk_parameters, stage_memory
from regista.jobs.pipeline import schedule_of
from regista.jobs.predict import predict
from regista.jobs.work import AttentionCore, CausalConvolution, Product, Scan, chunk_stacks, chunks_of, layer_backward, layer_forward

LATENT = Model(
    name="latent", layers=4, hidden=1024, ffn=4096, heads=8, kv_heads=8, head_dim=192, vocab=32000, seq=1024,
    kv_latent=512, q_latent=768, rope_dim=64, value_dim=128,
)  # fmt: skip


def job(model: Model, **layout: int) -> Job:
    at = Layout(**({"dp": 8, "global_batch": 32, "etp": 1} | layout))  # type: ignore[arg-type]
    return Job(name="", machine="h100", devices=at.devices, model=model, layout=at, running=Running(distributed_optimizer=True))


def test_latent_attention_multiplies_what_its_parameters_say():
    one = job(LATENT)
    products = [k for k in layer_forward(one) if isinstance(k, Product)]
    assert sum(p.n * p.k for p in products) == LATENT.attention_parameters + LATENT.mlp_parameters(LATENT.ffn)
    (core,) = (k for k in layer_forward(one) if isinstance(k, AttentionCore))
    assert core.head_dim == 160, "the mean of the keys' and the values' width"
    plain = replace(LATENT, kv_latent=0, q_latent=0, rope_dim=0, value_dim=0)
    assert predict(one).stages[0].peak_bytes != predict(job(plain)).stages[0].peak_bytes


def test_what_makes_latents_is_whole_on_every_tensor_parallel_rank():
    alone, two = (chunk_parameters(one, chunks_of(one)[0]) for one in (job(LATENT), job(LATENT, tp=2, dp=4)))
    down = LATENT.layers * LATENT.hidden * (LATENT.latent_width + 4)
    assert alone.dense - two.dense == pytest.approx((alone.dense - down) / 2, rel=1e-2)


def test_first_layers_without_experts_stand_in_the_first_chunks_only():
    model = family("deepseek-v3")
    one = replace(job(model, pp=8, ep=32, dp=32, global_batch=512), devices=256)
    first, *rest = chunks_of(one)
    assert [(stack.model.experts, count) for stack, count in chunk_stacks(one, first)] == [(0, 3), (256, 5)]
    assert all(stack.model.experts == 256 for chunk in rest for stack, _ in chunk_stacks(one, chunk))
    done = predict(checked(one, load_machine("h100")))
    assert done.step_s > 0 and len(done.stages) == 8
    every = replace(one, model=replace(model, dense_layers=0))
    assert chunk_parameters(one, first).expert == pytest.approx(5 / 8 * chunk_parameters(every, first).expert)


def test_parameters_of_a_tensor_parallel_rank_lie_split_over_its_replicas():
    model, machine = family("llama3-8b"), load_machine("h100")
    split, whole = job(model, tp=2, dp=4, fsdp=4, global_batch=8), job(model, tp=2, dp=4, global_batch=8)
    parts, all_ = (stage_memory(one, machine, schedule_of(one), 0).allocated for one in (split, whole))
    assert parts[Owner.PARAMETERS] == pytest.approx(all_[Owner.PARAMETERS] / 4)
    assert parts[Owner.MASTERS] == pytest.approx(all_[Owner.MASTERS])
    assert parts[Owner.GATHERED] > 2 / 32 * all_[Owner.PARAMETERS] and all_[Owner.GATHERED] == 0 == all_[Owner.UNSHARDED]
    assert predict(split).step_s > 0
    with pytest.raises(RegistaError, match="fsdp 4 with pp 2"):
        predict(job(model, pp=2, dp=4, fsdp=4, global_batch=8))


HYBRID = "nemotron-3-nano-30b-a3b"


def test_layers_of_a_hybrid_are_what_their_letters_say_in_every_chunk():
    model = family(HYBRID)
    one = job(model, pp=4, dp=4, ep=4, global_batch=16)
    counted = [{stack.model.part: count for stack, count in chunk_stacks(one, chunk)} for chunk in chunks_of(one)]
    assert [sum(own.values()) for own in counted] == [13] * 4
    whole = {part: sum(own.get(part, 0) for own in counted) for part in (Part.MAMBA, Part.EXPERTS, Part.ATTENTION)}
    assert whole == {Part.MAMBA: 23, Part.EXPERTS: 23, Part.ATTENTION: 6}
    cores = [sum(isinstance(k, AttentionCore) for k in layer_forward(stack)) for stack, _ in chunk_stacks(one, chunks_of(one)[0])]
    assert sorted(cores) == [0, 0, 1]
    done = predict(one)
    assert done.step_high_s / done.step_s > 1.28, "no step of a hybrid was fitted to"
    assert sum(chunk_parameters(one, chunk).expert for chunk in chunks_of(one)) == pytest.approx(23 * 128 * 2 * 2688 * 1856 / 4)


def test_a_layer_of_a_hybrid_has_one_scan_and_one_convolution_of_its_ranks_heads():
    model = replace(family(HYBRID), part=Part.MAMBA)
    whole, half = job(model, dp=4, global_batch=4), job(model, tp=2, dp=2, global_batch=4, sequence_parallel=True)
    for of, backward in ((layer_forward, False), (layer_backward, True)):
        for one, heads in ((whole, 64), (half, 32)):
            kernels = of(one)
            (scan,) = [k for k in kernels if isinstance(k, Scan)]
            (conv,) = [k for k in kernels if isinstance(k, CausalConvolution)]
            assert (scan.heads, scan.width, scan.backward, scan.tokens) == (heads, 64, backward, one.model.seq * one.layout.micro_batch)
            assert (conv.channels, conv.backward) == (heads * 64 + 2 * 8 * 128 * heads // 64, backward)


def test_the_time_of_a_hybrid_says_what_its_scans_take():
    done = predict(job(family(HYBRID), dp=8, ep=8, global_batch=8))
    assert 0.03 < done.seconds["scans"] / done.step_s < 0.5


def test_a_whole_layer_keeps_what_its_attention_and_its_feed_forward_keep_apart():
    plain = replace(family("llama3-8b"), layers=1)
    one, two = (predict(job(model, dp=1, global_batch=1)) for model in (plain, replace(plain, layers=2, pattern="*-")))
    held = [done.stages[0].allocated[Owner.ACTIVATIONS] for done in (one, two)]
    assert held[0] == pytest.approx(held[1])
    assert one.step_s == pytest.approx(two.step_s, rel=0.03)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"pattern": "M?" * 26}, "pattern has"),
        ({"pattern": "M*"}, "pattern of 2 letters for 52 layers"),
        ({"mamba_heads": 0}, "Mamba layers .M. need all of them"),
        ({"pattern": "M" * 52}, "E needs experts"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused_by_name(wrong: dict[str, object], says: str):
    with pytest.raises(RegistaError, match=says):
        checked(job(replace(family(HYBRID), **wrong)), load_machine("h100"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kv_latent": 0}, "without kv_latent"),
        ({"rope_dim": 192}, "is a part of head_dim 192"),
        ({"kv_heads": 4}, "kv_heads 4 are the heads 8"),
        ({"dense_layers": 2}, "dense_layers 2: they are the first of a model with experts"),
    ],
)
def test_widths_that_contradict_each_other_are_refused_by_name(wrong: dict[str, int], says: str):
    with pytest.raises(RegistaError, match=says):
        checked(job(replace(LATENT, **wrong)), load_machine("h100"))  # type: ignore[arg-type]
