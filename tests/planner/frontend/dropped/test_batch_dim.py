"""The batch dim of each input: as the user says, or found; what is ambiguous is refused before a batch is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpret import interpret
from oracle import train_eagerly
from torch import Tensor, nn

from planner.frontend import SGD, Program
from planner.frontend.batch import BatchDim
from planner.ir.errors import InvalidProgram
from planner.ir.graph import InputKind

_RNG = torch.Generator().manual_seed(0)
BATCH, STEPS = 4, 6


class Around(nn.Module):
    """A body and a function of it: forward(*inputs) = function(body, *inputs)."""

    def __init__(self, body: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.body, self.function = body, function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.body, *inputs)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_RNG)


def anchors(batch_dim: BatchDim = None) -> Program:
    """Distances to 4 anchors, of a batch of 4: the anchors are no batch, and run at any number of samples."""

    def distances(body: nn.Module, x: Tensor, points: Tensor) -> Tensor:
        return (body(x)[:, None] - points[None]).square().sum(-1).amin(1)

    torch.manual_seed(0)
    _RNG.manual_seed(0)
    inputs = (_randn(BATCH, 6), _randn(BATCH, 8), _randn(BATCH))
    return Program(Around(nn.Linear(6, 8), distances), inputs, F.mse_loss, SGD(lr=0.01), batch_dim=batch_dim)


def test_an_input_that_may_be_no_batch_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        InvalidProgram, match=r"input\.1 of shape \[4, 8\] has the batch's extent 4 .* as well.*batch_dim= per input .*None if not"
    ):
        anchors().graph(2)
    anchors().graph(1)  # one micro-batch cuts nothing


def test_an_input_that_is_no_batch_is_refused_by_what_the_step_runs_with() -> None:
    module = Around(nn.Linear(6, BATCH), lambda body, x, scale: body(x) * scale)
    program = Program(module, (_randn(BATCH, 6), _randn(BATCH), _randn(BATCH, BATCH)), F.mse_loss)
    with pytest.raises(InvalidProgram, match=r"input\.1 of shape \[4\] .* the step runs with 4 of it only: it is no batch"):
        program.graph(2)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_an_input_without_batch_is_seen_whole_by_every_micro_batch(micro_batches: int) -> None:
    """The mean over micro-batches is the whole batch's loss: 2.837 against 2.886 when the anchors were cut, too."""
    program = anchors((0, None, 0))
    outcome = interpret(program, program.graph(micro_batches), micro_batches, 2)
    assert outcome.losses == pytest.approx(train_eagerly(anchors((0, None, 0)), 1, 2).losses, rel=1e-5)


class Recurrent(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(5, 8, **options), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0])
        return out


def sequences(batch_dim: BatchDim = None) -> Program:
    """torch's default layout: [time, sample, feature]."""
    return Program(Recurrent(), (_randn(STEPS, BATCH, 5), _randn(STEPS, BATCH, 3)), F.mse_loss, SGD(lr=0.1), batch_dim=batch_dim)


def test_a_layer_that_takes_the_batch_for_time_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidProgram, match=r"module 'lstm' \(LSTM with batch_first=False\) takes dim 0 .* for time.*say batch_dim=1"):
        sequences().graph(2)


def test_sequence_first_inputs_are_cut_by_samples_when_told_so() -> None:
    program = sequences(1)
    assert program.batch_size == BATCH and [t.shape for t in program.micro_batch(program.example_inputs, 2, 1)] == [(6, 2, 5), (6, 2, 3)]
    graph = program.graph(2)
    assert {i.batch_dim for i in graph.inputs if i.kind is InputKind.BATCH} == {1}
    whole = Program(program.module, program.example_inputs, F.mse_loss, SGD(lr=0.1), batch_dim=1)
    assert interpret(program, graph, 2, 2).losses == pytest.approx(train_eagerly(whole, 1, 2).losses, rel=1e-5)


def test_a_layer_behind_a_transpose_is_no_ambiguity() -> None:
    class Turned(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.transpose(0, 1)).transpose(0, 1)

    graph = Program(Turned(), (_randn(BATCH, STEPS, 5), _randn(BATCH, STEPS, 3)), F.mse_loss).graph(2)
    assert {i.batch_dim for i in graph.inputs if i.kind is InputKind.BATCH} == {0}


def test_ordinary_batches_need_no_word() -> None:
    module = Around(nn.Linear(6, 8), lambda body, x, mask: body(x) * mask)
    program = Program(module, (_randn(BATCH, 6), _randn(BATCH, 1), _randn(BATCH, 8)), F.mse_loss)
    assert program.batch_dims.dims == (0, 0, 0) and not program.batch_dims.given
    program.graph(2)


def test_batch_dims_by_name_and_for_all() -> None:
    inputs = {"x": _randn(STEPS, BATCH), "table": _randn(9), "y": torch.tensor(1.0)}

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor, table: Tensor, y: Tensor) -> Tensor:
            return (x.mean() + table.sum() + y) * self.scale.sum()

    assert Program(Named(), inputs, batch_dim={"x": 1, "table": None, "y": None}).batch_dims.dims == (1, None, None)
    assert Program(Named(), {k: v for k, v in inputs.items() if k != "table"}, batch_dim=-1).batch_dims.dims == (1, None)


BAD: dict[str, tuple[object, str]] = {
    "beyond": (3, r"batch_dim=3: input\.0 has shape \[6, 4, 5\]"),
    "no number": ("one", r"batch_dim= of input\.0 is 'one'"),
    "too few": ((1,), r"has entries for 0, the inputs are 0, 1; give one each"),
    "none at all": ((None, None), "names no input that has the batch"),
    "unequal": ((1, 0), r"input\.0 dim 1 has 4, input\.1 dim 0 has 6"),
    "names of what has none": ({"x": 1}, "has entries for x, the inputs are 0, 1"),
    "a truth": (True, r"batch_dim= of input\.0 is True"),
}


@pytest.mark.parametrize(("given", "words"), BAD.values(), ids=list(BAD))
def test_batch_dims_that_do_not_fit_are_refused(given: BatchDim, words: str) -> None:
    with pytest.raises(InvalidProgram, match=words):
        sequences(given)


def test_an_example_input_that_requires_grad_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"requires grad.*detach\(\)"):
        Program(nn.Linear(6, 1), (_randn(BATCH, 6).requires_grad_(),), lambda y: y.mean())


class MaskedByPlace(nn.Module):
    """As masks are made in Hugging Face's models: the row of a mask is read by the sample's number, at places that arange gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, columns = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None, :]
        return (self.layer(x).squeeze(-1) * mask.bool()[rows, columns]).square().mean()


def test_an_input_that_is_read_by_the_sample_s_number_goes_along_with_the_batch() -> None:
    """Tensors without values do not tell that row 6 of 4 is read: 15 language models of Hugging Face were refused for their attention mask."""
    source = Program(MaskedByPlace(), (torch.randn(4, 5, 3), torch.ones(4, 5)))
    assert [given.batch_dim for given in source.graph(2).inputs if given.name.startswith("input.")] == [0, 0]


def test_an_input_that_is_read_at_places_of_its_own_need_not_go_along() -> None:
    class Anchored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, anchors: Tensor) -> Tensor:
            return (self.layer(x)[:, None] - anchors[torch.arange(4)]).square().mean()

    with pytest.raises(InvalidProgram, match=r"input\.1 of shape \[4, 3\] has the batch's extent"):
        Program(Anchored(), (torch.randn(4, 3), torch.randn(4, 3))).graph(2)


def test_an_input_whose_extent_fits_by_chance_alone_goes_along_with_the_batch() -> None:
    """Whisper's decoder folds the encoder's 7 x 8 rows into 4 x 14 without a word."""

    def attend(body: nn.Module, x: Tensor, query: Tensor) -> Tensor:
        keys = body(x).view(query.shape[0], -1, 6)
        return (query[:, None] * keys).square().mean()

    source = Program(Around(nn.Linear(6, 6), attend), (_randn(BATCH, 8, 6), _randn(BATCH, 6)))
    assert [given.batch_dim for given in source.graph(2).inputs if given.name.startswith("input.")] == [0, 0]


def test_samples_that_are_each_other_s_classes_go_along_with_the_batch() -> None:
    """CLIP's loss: text i belongs to image i of as many."""

    def contrast(body: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        return F.cross_entropy(body(x) @ other.t(), torch.arange(x.shape[0]))

    source = Program(Around(nn.Linear(6, 6), contrast), (_randn(BATCH, 6), _randn(BATCH, 6)))
    assert [given.batch_dim for given in source.graph(2).inputs if given.name.startswith("input.")] == [0, 0]
