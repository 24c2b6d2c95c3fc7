"""Initial values drawn by counter: any part by itself, bit-equal to the slice of the whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gpt import WAYS, plan_for, program
from torch import nn

import backend.initial.philox as philox
import regista
from backend.checkpoint.handover import hand_over, take_over
from backend.initial import Given, Layers, Weights, program_values
from backend.initial.drawn import initial_values
from backend.initial.philox import stream_key, uniform_box, uniforms
from backend.initial.recipe import Arithmetic, Cast, Change, Draw, Fill, Normal, Recipe, TruncatedNormal, Uniform
from backend.initial.values import Box, whole_box
from backend.layout.sharding import slice_part
from backend.layout.views import box_view
from backend.memory.blocks import initial_states
from planner.frontend import Program
from planner.ir.errors import InvalidFile, InvalidPlan, RegistaError, Unsupported
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType
from zoo import ZOO


@st.composite
def boxes(draw: st.DrawFn, most: int = 9) -> tuple[tuple[int, ...], Box]:
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=0, max_size=4)))
    box = []
    for extent in shape:
        offset = draw(st.integers(0, extent - 1))
        box.append((offset, draw(st.integers(0, extent - offset))))
    return shape, tuple(box)


# Philox.


@given(st.integers(0, 2**127), st.integers(0, 4000), st.integers(0, 60))
def test_any_run_of_a_stream_equals_that_slice_of_the_stream(key: int, start: int, count: int) -> None:
    assert np.array_equal(uniforms(key, start, count), uniforms(key, 0, start + count)[start:])


def test_element_i_is_word_i_mod_4_of_block_i_div_4() -> None:
    words = np.random.Philox(key=77).random_raw(400)
    for i in (0, 1, 4, 7, 399):
        one = np.random.Philox(key=77).advance(i // 4).random_raw(4)[i % 4]
        assert one == words[i]
        assert uniforms(77, i, 1)[0] == (int(words[i]) >> 11) * 2.0**-53 + 2.0**-54


@given(boxes(), st.integers(1, 40), st.sampled_from([1, 7, 10**9]))
def test_a_box_of_uniforms_equals_that_slice_of_the_whole(place: tuple[tuple[int, ...], Box], chunk: int, short: int) -> None:
    shape, box = place
    whole = uniform_box(5, shape, whole_box(shape))
    with pytest.MonkeyPatch.context() as patch:  # both ways to draw, in chunks that break rows
        patch.setattr(philox, "_CHUNK", chunk)
        patch.setattr(philox, "_SHORT", short)
        assert torch.equal(uniform_box(5, shape, box), box_view(whole, box))


def test_uniforms_lie_inside_the_open_interval_and_spread_evenly() -> None:
    drawn = uniforms(stream_key(3, "w#0"), 10**11, 200_000)
    assert drawn.min() > 0 and drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    assert (np.abs(counts - 10_000) < 5 * np.sqrt(10_000 * 0.95)).all()


def test_seed_and_name_both_choose_the_stream() -> None:
    keys = {stream_key(seed, name) for seed in (0, 1, 10) for name in ("a#0", "a#1", "0\na#0")}
    assert len(keys) == 9


# Recipes.

STEPS = (
    Draw(distribution=Normal(mean=1.0, std=3.0), key="a"),
    Draw(distribution=Uniform(low=-2.0, high=5.0), key="b"),
    Draw(distribution=TruncatedNormal(mean=0.5, std=0.7, low=-0.2, high=0.9), key="c"),
    Fill(value=0.25),
)
CHANGES = (
    Change(op=Arithmetic.MUL, numbers=(0.02,)),
    Change(op=Arithmetic.ADD, numbers=(-1.7,)),
    Change(op=Arithmetic.DIV, numbers=(3.0,)),
    Change(op=Arithmetic.CLAMP, numbers=(-0.3, float("inf"))),
    Change(op=Arithmetic.ABS),
    Cast(dtype=DType.BFLOAT16),
)


@given(boxes(), boxes(), st.sampled_from(STEPS), st.lists(st.sampled_from(CHANGES), max_size=4), st.integers(0, 5))
def test_a_part_of_a_recipe_equals_that_slice_of_the_whole(
    place: tuple[tuple[int, ...], Box], other: tuple[tuple[int, ...], Box], first: Any, then: list[Any], seed: int
) -> None:
    shape, box = place
    where = tuple((min(o, extent - 1), min(n, extent - min(o, extent - 1))) for (o, n), extent in zip(other[1], shape, strict=False))
    inner = (Fill(value=7.0, where=where),) if len(where) == len(shape) and shape else ()
    recipe = Recipe(shape=shape, dtype=DType.FLOAT32, steps=(first, *then, *inner))
    assert torch.equal(recipe.part(seed, box), box_view(recipe.part(seed, whole_box(shape)), box))


@pytest.mark.parametrize(
    ("distribution", "mean", "std", "low", "high"),
    [
        (Normal(mean=2.0, std=0.5), 2.0, 0.5, -9.0, 9.0),
        (Uniform(low=-1.0, high=3.0), 1.0, 4 / 12**0.5, -1.0, 3.0),
        # Of the standard normal within two deviations the deviation is 0.8796 [Johnson, Kotz & Balakrishnan 1994, (13.134)].
        (TruncatedNormal(std=0.1, low=-0.2, high=0.2), 0.0, 0.08796, -0.2, 0.2),
    ],
)
def test_a_distribution_has_its_mean_and_deviation(distribution: Any, mean: float, std: float, low: float, high: float) -> None:
    recipe = Recipe(shape=(400, 500), dtype=DType.FLOAT32, steps=(Draw(distribution=distribution, key="x"),))
    drawn = recipe.part(1, whole_box(recipe.shape)).double()
    assert abs(float(drawn.mean()) - mean) < 5 * std / 200_000**0.5
    assert abs(float(drawn.std()) / std - 1) < 0.01
    assert float(drawn.min()) >= low - 1e-7 and float(drawn.max()) <= high + 1e-7


# What a module's own code does.


def built(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


SIZES: dict[str, dict[str, int]] = {
    "gpt": {"layers": 2, "width": 32, "heads": 4, "vocab": 64, "seq": 16},
    "convnet": {"channels": 8, "size": 8},
    "mlp": {"width": 16, "hidden": 32},
    "t5": {"layers": 1, "width": 32, "heads": 2, "vocab": 64},
}


@pytest.mark.parametrize("model", list(SIZES))
def test_a_recorded_module_is_distributed_as_the_built_one(model: str) -> None:
    """Same names, shapes and dtypes; what is not random is bit-equal; what is random has the same deviation and mean, to its own error."""
    source = ZOO[model](**SIZES[model])
    assert source.factory is not None
    real, values = built(source.factory.build()), initial_values(source.factory, 11)
    assert set(values.names) == set(real)
    for name, wanted in real.items():
        drawn = values.whole(name)
        assert drawn.shape == wanted.shape and drawn.dtype == wanted.dtype
        if float(wanted.detach().double().std() if wanted.numel() > 1 else 0.0) == 0.0 or not wanted.is_floating_point():
            assert torch.equal(drawn, wanted), name
            continue
        spread = float(wanted.detach().std())
        error = 6 / wanted.numel() ** 0.5
        assert abs(float(drawn.std()) / spread - 1) < error, name
        assert abs(float(drawn.mean()) - float(wanted.detach().mean())) < spread * error * 1.5, name


class Ways(nn.Module):
    """One parameter per way to begin."""

    def __init__(self) -> None:
        super().__init__()
        self.xavier = nn.Parameter(torch.empty(30, 40))
        nn.init.xavier_uniform_(self.xavier)
        self.truncated = nn.Parameter(torch.empty(30, 40))
        nn.init.trunc_normal_(self.truncated, std=0.02, a=-0.04, b=0.04)
        self.kaiming = nn.Parameter(torch.empty(8, 3, 5, 5))
        nn.init.kaiming_normal_(self.kaiming, mode="fan_out")
        self.scaled = nn.Parameter(torch.randn(50, 20) * 0.02 + 1)
        self.halves = nn.Parameter(torch.empty(6, 10))
        for half, bound in zip(self.halves.chunk(2), (1.0, 0.1), strict=True):
            nn.init.uniform_(half, -bound, bound)
            half.data.mul_(2.0)
        self.padded = nn.Embedding(12, 16, padding_idx=3)
        self.copied = nn.Parameter(self.xavier.detach().clone())
        self.half = nn.Linear(9, 7).to(torch.bfloat16)
        self.register_buffer("table", torch.arange(12.0).view(3, 4).cos())
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())
        self.register_buffer("one", torch.tensor(3))
        self.eye = nn.Parameter(torch.eye(4))
        self.given = nn.Linear(3, 2, bias=False)
        self.given.weight.data.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        self.clamped = nn.Parameter(torch.randn(40, 10).clamp(min=-0.5).clamp_max(0.25))


def test_the_ways_of_torch_nn_init_are_recorded() -> None:
    values = initial_values(Ways, 0)
    real = built(Ways())
    assert {name: (values.whole(name).shape, values.whole(name).dtype) for name in real} == {n: (v.shape, v.dtype) for n, v in real.items()}
    for name in ("table", "mask", "one", "eye", "given.weight"):
        assert torch.equal(values.whole(name), real[name]), name
    bound = (6 / 70) ** 0.5
    assert 0.97 * bound < float(values.whole("xavier").abs().max()) <= bound
    assert 0.035 < float(values.whole("truncated").abs().max()) <= 0.04
    assert abs(float(values.whole("kaiming").std()) / (2 / (8 * 25)) ** 0.5 - 1) < 0.2
    assert abs(float(values.whole("scaled").mean()) - 1) < 0.005 and abs(float(values.whole("scaled").std()) - 0.02) < 0.003
    assert (float(values.whole("clamped").min()), float(values.whole("clamped").max())) == (-0.5, 0.25)
    halves = values.whole("halves").abs()
    assert 0.2 < float(halves[:3].max()) <= 2 and 0.02 < float(halves[3:].max()) <= 0.2
    assert float(values.whole("padded.weight")[3].abs().max()) == 0 and float(values.whole("padded.weight")[4].std()) > 0.3


def test_a_copied_parameter_starts_equal_to_its_original() -> None:
    values = initial_values(Ways, 4)
    assert torch.equal(values.whole("copied"), values.whole("xavier"))
    assert not torch.equal(values.whole("xavier")[:, :10], values.whole("truncated")[:, :10])


def test_adding_a_layer_does_not_change_the_others() -> None:
    class Two(nn.Module):
        def __init__(self, more: bool) -> None:
            super().__init__()
            self.extra = nn.Linear(3, 3) if more else None
            self.kept = nn.Linear(5, 4)

    small, large = initial_values(lambda: Two(False), 2), initial_values(lambda: Two(True), 2)
    assert torch.equal(small.whole("kept.weight"), large.whole("kept.weight"))


def test_recording_draws_no_number_of_the_global_generator() -> None:
    before = torch.get_rng_state()
    initial_values(Ways, 0)
    assert torch.equal(torch.get_rng_state(), before)


class Orthogonal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(nn.init.orthogonal_(torch.empty(4, 4)))


class OverDefault(nn.Module):
    """On the meta device orthogonal_ does nothing, and what the layer was filled with before would stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        nn.init.orthogonal_(self.layer.weight)


class Unfilled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.empty(4))


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))
        self.large = bool(self.w.max() > 1)


class Permuted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(9))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Orthogonal, ("turn", "linalg_qr", "cannot be drawn in parts")),
        (OverDefault, ("layer.weight", "linalg_qr", "cannot be drawn in parts")),
        (Unfilled, ("left", "never filled")),
        (Reading, ("reads what it has drawn",)),
        (Permuted, ("order", "randperm")),
    ],
)
def test_what_cannot_be_drawn_in_parts_is_refused_by_name(module: type[nn.Module], words: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported) as refused:
        initial_values(module, 0)
    assert all(word in str(refused.value) for word in (*words, "weights:FILE"))


# On a mesh.


@pytest.mark.parametrize("way", list(WAYS))
def test_each_rank_draws_bit_equal_to_its_part_of_the_whole(way: str, tmp_path: Path) -> None:
    """And so through the files by which the parent of a run tells its workers."""
    plan, source = plan_for(way), program()
    values = program_values(source, plan.micro_batches, seed=9)
    hand_over(tmp_path, values, {entry.name for entry in plan.states})
    handed_over = take_over(tmp_path)
    wholes = {entry.name: _whole(values, entry.name) for entry in plan.states}
    for rank in range(WAYS[way][0]):
        parts = initial_states(plan, rank, handed_over)
        for entry in plan.states:
            regst = plan.regst[entry.regst]
            placement = plan.placement[regst.placement]
            if rank in placement.ranks:
                wanted = slice_part(wholes[entry.name], regst.tensors[entry.index].sbp, placement.mesh, placement.coordinate(rank))
                assert torch.equal(parts[entry.regst, entry.index], wanted), entry.name


def _whole(values: Layers, name: str) -> torch.Tensor:
    tensor_type = values.type_of(name)
    assert tensor_type is not None
    return values.part(name, whole_box(tensor_type.shape))


@settings(max_examples=20)
@given(st.integers(1, 8), st.integers(0, 1))
def test_a_rank_draws_no_more_numbers_than_its_part_and_one_row_of_words(parts: int, dim: int) -> None:
    drawn: list[int] = []
    original = philox.uniforms

    def counted(key: int, start: int, count: int) -> Any:
        drawn.append(count)
        return original(key, start, count)

    recipe = Recipe(shape=(8, 1024 * parts), dtype=DType.FLOAT32, steps=(Draw(distribution=Normal(), key="w"),))
    width = recipe.shape[dim] // (parts if dim else 8)
    box = ((0, 8), (0, width)) if dim else ((3, 1), (0, recipe.shape[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(philox, "uniforms", counted)
        recipe.part(0, box)
    assert sum(drawn) == box[0][1] * box[1][1]


def test_values_refuse_unknown_names_and_boxes_beyond_the_tensor() -> None:
    values = initial_values(Ways, 0)
    with pytest.raises(InvalidPlan, match="no parameter or buffer nothing"):
        values.whole("nothing")
    with pytest.raises(InvalidPlan, match=r"xavier of shape \(30, 40\)"):
        values.part("xavier", ((0, 31), (0, 40)))


def test_a_module_that_is_built_already_has_no_draws_to_record() -> None:
    source = program()
    built_already = Program(source.module, source.example_inputs, source.loss, name="gpt", data=source.data)
    with pytest.raises(Unsupported, match=r"Program\(Deferred\(build\)\)"):
        program_values(built_already, 1, seed=0)


# Files.


@pytest.mark.parametrize("wrapper", [None, "state_dict"])
def test_weights_are_cut_from_a_file_and_optimizer_state_is_zero(tmp_path: Path, wrapper: str | None) -> None:
    source = program()
    held = source.module.state_dict()
    path = tmp_path / "w.pt"
    torch.save(held if wrapper is None else {wrapper: held, "epoch": 3}, path)
    values = program_values(source, 1, weights=Weights(str(path)))
    box = ((3, 5), (10, 7))
    assert torch.equal(values.part("wte.weight", box), held["wte.weight"][3:8, 10:17])
    assert not values.part("wte.weight:exp_avg", box).any()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, "do not exist"),
        (lambda path: path.write_bytes(b"no weights"), "cannot be mapped"),
        (lambda path: torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False), "cannot be mapped"),
        (lambda path: torch.save({"epoch": 3}, path), "without tensors"),
    ],
)
def test_a_weights_file_of_another_form_is_refused(tmp_path: Path, write: Any, words: str) -> None:
    path = tmp_path / "w.pt"
    write(path)
    with pytest.raises(InvalidFile, match=words):
        Weights(str(path)).type_of("w")


def test_of_several_sources_the_first_that_has_the_name_gives_it() -> None:
    values = Layers((Given({"a": torch.zeros(2)}), Given({"a": torch.ones(2), "b": torch.ones(3)})))
    assert torch.equal(values.part("a", ((0, 2),)), torch.zeros(2))
    assert torch.equal(values.part("b", ((1, 2),)), torch.ones(2))
    with pytest.raises(RegistaError, match="no values for state c"):
        values.part("c", ())


def test_a_part_in_memory_keeps_nothing_of_the_whole_alive() -> None:
    part = Given({"a": torch.zeros(1000, 10)}).part("a", ((5, 1), (0, 10)))
    assert part.untyped_storage().nbytes() == part.nbytes


def test_parts_of_a_sum_give_the_value_once() -> None:
    program = Program(nn.Linear(4, 4), (torch.zeros(4, 4), torch.zeros(4, 4)), loss=nn.functional.mse_loss)
    plan = regista.plan(program, "local:2", mode="eval")
    halves = tuple(replace(r, tensors=tuple(replace(t, sbp=NdSbp.parse("P")) for t in r.tensors)) for r in plan.regsts)
    summed, state = replace(plan, regsts=halves), program.initial_state()
    parts = [initial_states(summed, rank, state) for rank in (0, 1)]
    for entry in plan.states:
        here, there = (of_rank[entry.regst, entry.index] for of_rank in parts)
        assert torch.equal(here + there, state[entry.name]) and state[entry.name].any()
