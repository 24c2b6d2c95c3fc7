"""Batches and losses as users have them: keywords, nested mappings, sequences and dataclasses; outputs with ``.loss``; several losses."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from matrix import assert_transparent, roomy_cluster
from oracle import train_eagerly
from torch import Tensor, nn

from backend.reference import perform
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram
from planner.parallelism.make import PlanOptions, make_plan

BATCH = 8
GENERATOR = torch.Generator().manual_seed(0)
X, E, Y = torch.randn(BATCH, 4, generator=GENERATOR), torch.randn(BATCH, 4, generator=GENERATOR), torch.arange(BATCH) % 3

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True, slots=True)
class Sample:
    features: Tensor
    extra: tuple[Tensor | None, ...]
    scale: float = 1.0


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class ModelOutput(OrderedDict[str, Any]):
    """As that of Hugging Face: a mapping whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Scorer(nn.Module):
    """Takes its inputs in many forms, and gives what ``form`` asks for."""

    def __init__(self, form: str = "loss") -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.form = form

    def forward(self, sample: Any, other: Any = None, labels: Tensor | None = None, *, twice: bool = False) -> Any:
        if isinstance(sample, Sample):
            x = sample.features * sample.scale + sum(e for e in sample.extra if e is not None)
        elif isinstance(sample, Pair):
            x = sample.left + 2 * sample.right
        elif isinstance(sample, Tensor):
            x = sample
        else:
            x = sample["features"] + sample["more"][0]
        x = x if other is None else x * other["scale"]
        logits = self.layer(x) * (2 if twice else 1)
        if labels is None:
            return logits if self.form == "logits" else Output(logits)
        fit, size = F.cross_entropy(logits, labels), logits.square().mean()
        match self.form:
            case "loss":
                return Output(logits, fit)
            case "model output":
                return ModelOutput(logits=logits, loss=fit)
            case "named losses":
                return {"fit": fit, "size": size}
            case "losses":
                return fit, size
            case "loss and logs":
                return {"loss": fit, "size": size.detach(), "logits": logits}
            case "loss and logits":
                return fit, logits
        raise AssertionError(self.form)


def train_on_two(source: Program) -> None:
    """Two devices train like one, over micro-batches that cut every tensor of the batch."""
    options = PlanOptions(micro_batches=2, pins=("input.0=S(0)",))
    plan = make_plan(source.graph(2), model="m", batch_size=BATCH, cluster=roomy_cluster(2), options=options)
    outcome = perform(plan, source.initial_state(2), source.batch, 2, gradients=True)
    assert_transparent(outcome, train_eagerly(source, 2, 2))


BATCHES: dict[str, Any] = {
    "a nested mapping": {"sample": {"features": X, "more": (E, None)}, "labels": Y},
    "positional, nested": ({"features": X, "more": [E]}, {"scale": torch.tensor(0.5)}, Y),
    "a frozen dataclass": {"sample": Sample(X, (E, None), 0.5), "labels": Y},
    "a named tuple": (Pair(X, E), None, Y),
    "a mapping of its own kind": {"sample": UserDict(features=X, more=(E,)), "labels": Y, "twice": True},
}


@pytest.mark.parametrize("form", BATCHES)
def test_a_batch_of_any_form_trains_on_two_devices_like_on_one(form: str) -> None:
    source = Program(Scorer(), BATCHES[form], optimizer=SGD(lr=0.1))
    assert [i.shape[0] for i in source.example_inputs if i.ndim] == [BATCH] * sum(i.ndim > 0 for i in source.example_inputs)
    train_on_two(source)


def test_tensors_are_numbered_as_they_stand() -> None:
    source = Program(Scorer(), BATCHES["a nested mapping"])
    assert all(a is b or torch.equal(a, b) for a, b in zip(source.example_inputs, (X, E, Y), strict=True))
    assert [i.name for i in source.graph().inputs if i.value.startswith("batch:")] == ["input.0", "input.1", "input.2"]


@pytest.mark.parametrize("form", ["loss", "model output", "loss and logs"])
def test_the_loss_of_an_output_is_its_entry_of_that_name(form: str) -> None:
    source = Program(Scorer(form), {"sample": X, "labels": Y})
    wanted = F.cross_entropy(source.module.layer(X), Y)
    assert torch.equal(source.loss_of(source.module, source.batch(0)), wanted)
    train_on_two(source)


@pytest.mark.parametrize("form", ["named losses", "losses"])
def test_several_losses_are_added_up(form: str) -> None:
    source = Program(Scorer(form), {"sample": X, "labels": Y}, optimizer=SGD(lr=0.1))
    logits = source.module.layer(X)
    assert torch.equal(source.loss_of(source.module, source.batch(0)), F.cross_entropy(logits, Y) + logits.square().mean())
    train_on_two(source)


def test_a_loss_may_return_several_and_take_nested_targets() -> None:
    """The last entry of the batch is the one target, a mapping."""

    def losses(logits: Tensor, target: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"fit": F.cross_entropy(logits, target["labels"]), "size": (logits * target["weight"]).square().mean()}

    batch = (X, {"labels": Y, "weight": torch.rand(BATCH, 1)})
    source = Program(Scorer("logits"), batch, losses, SGD(lr=0.1))
    assert source.num_targets == 1 and len(source.example_inputs) == 3
    train_on_two(source)


def test_entries_that_the_module_has_no_argument_for_are_targets_of_a_loss_that_may_do_without() -> None:
    """As losses of metric learning are: forward(embeddings, labels=None, ...)."""

    def loss(logits: Tensor, labels: Tensor | None = None, weight: float = 1.0) -> Tensor:
        return weight * logits.square().mean() if labels is None else F.cross_entropy(logits, labels)

    source = Program(nn.Linear(4, 3), (X, Y), loss)
    assert source.num_targets == 1
    train_on_two(source)
    assert Program(nn.Linear(4, 3), (X,), loss).num_targets == 0
    assert Program(nn.Bilinear(4, 4, 3), (X, X), loss).num_targets == 0


def test_data_of_a_step_has_the_form_of_the_example() -> None:
    drawn = [{"sample": {"features": X + step, "more": (E, None)}, "labels": Y} for step in range(2)]
    source = Program(Scorer(), BATCHES["a nested mapping"], data=lambda step: drawn[step])
    assert torch.equal(source.batch(1)[0], X + 1)
    train_on_two(source)


SAMPLE = {"features": X, "more": (E, None)}


@pytest.mark.parametrize(
    ("drawn", "says"),
    [
        ({"sample": SAMPLE}, r"data\(0\) must be a mapping with the keys of example_inputs, in their order: sample, labels"),
        (
            {"sample": {"features": X}, "labels": Y},
            r"data\(0\)\['sample'\] must be a mapping with the keys of example_inputs, in their order: features, more",
        ),
        ({"sample": {"features": X, "more": (E,)}, "labels": Y}, r"data\(0\)\['sample'\]\['more'\] must be a sequence of 2 entries"),
        (
            {"sample": {"features": X, "more": (E, 3)}, "labels": Y},
            r"data\(0\)\['sample'\]\['more'\]\[1\] is 3 but None in example_inputs; what is no tensor is the same at every step",
        ),
        ({"sample": {"features": 1.0, "more": (E, None)}, "labels": Y}, r"data\(0\)\['sample'\]\['features'\] must be a tensor"),
        (
            {"sample": {"features": X[:3], "more": (E, None)}, "labels": Y},
            r"data\(0\) gives float32\[3, 4\], .* every step has the same types",
        ),
    ],
)
def test_data_of_another_form_is_refused_by_the_place(drawn: object, says: str) -> None:
    source = Program(Scorer(), BATCHES["a nested mapping"], data=lambda _: drawn)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidProgram, match=says):
        source.batch(0)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (3, "must be a tensor, a tuple of arguments or a mapping of keywords, but is a int"),
        ("batch", "must be a tensor, a tuple of arguments or a mapping of keywords, but is a str"),
        ((), "must hold at least one tensor"),
        ({"sample": None}, "must hold at least one tensor"),
        ((X, {"labels": {1, 2}}), r"example_inputs\[1\]\['labels'\] is a set; inputs are tensors, numbers, strings and None"),
        ((torch.tensor(1.0), {"flag": True}), "must hold a tensor whose dim 0 is the batch"),
    ],
)
def test_inputs_that_are_no_batch_are_refused(batch: Any, says: str) -> None:
    with pytest.raises(InvalidProgram, match=says):
        Program(Scorer(), batch)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("logits", "the loss must be a scalar but the module returned shape"),
        ("loss and logits", "must return a scalar loss but returned a tuple"),
    ],
)
def test_an_output_in_which_no_loss_is_named_is_refused(form: str, says: str) -> None:
    batch: dict[str, Tensor] = {"sample": X} if form == "logits" else {"sample": X, "labels": Y}
    with pytest.raises(InvalidProgram, match=says):
        Program(Scorer(form), batch).graph()


def test_the_modules_batch_is_a_copy_that_it_may_change() -> None:
    """A module that takes entries out of its batch sees all of them at every step."""

    class Popping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            labels = batch.pop("labels")
            return F.cross_entropy(self.layer(batch["features"]), labels)

    batch = {"features": X, "labels": Y}
    train_on_two(Program(Popping(), (batch,), optimizer=SGD(lr=0.1)))
    assert set(batch) == {"features", "labels"}
