"""Sequences of different lengths, packed for a recurrent layer: the plan equals plain PyTorch, which packs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from matrix import roomy_cluster
from oracle import train_eagerly
from six_ways import assert_trains_alike, quick_ways
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import regista
from planner.frontend import SGD, Program
from planner.ir.errors import InvalidProgram
from planner.ir.graph import Role
from planner.ir.plan import Fragment, TaskKind
from planner.opset import flop
from planner.parallelism.make import PlanOptions, make_plan

STEPS = 2
TOKENS = torch.randint(0, 11, (8, 7), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([7, 3, 5, 1, 7, 2, 6, 4])
CLASSES = torch.arange(8) % 3


class Reader(nn.Module):
    """Outputs and last states of a packed recurrent layer; tokens [batch, 7], lengths [batch] -> [batch, 3]."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(11, 6)
        self.body = kind(6, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed, last = self.body(self.packed(self.embedding(tokens), lengths))
        y, _ = pad_packed_sequence(packed, batch_first=True, total_length=tokens.size(1))
        state = torch.cat(list(last[0] if isinstance(last, tuple) else last), -1)
        out: Tensor = self.head(y).mean(1) + self.head(state)
        return out

    def packed(self, x: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
        """The call that users write."""
        return pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)


class OfOneBatch(Reader):
    """The lengths are in the module."""

    def packed(self, x: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
        return pack_padded_sequence(x, LENGTHS.tolist(), batch_first=True, enforce_sorted=False)


def program(module: nn.Module | None = None) -> Program:
    return Program(module or Reader(), (TOKENS, LENGTHS, CLASSES), F.cross_entropy, optimizer=SGD(lr=0.5))


@quick_ways
@pytest.mark.parametrize(
    "kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.thorough), pytest.param(nn.RNN, marks=pytest.mark.thorough)]
)
def test_packed_sequences_train_as_in_plain_pytorch(way: str, kind: type[nn.RNNBase]) -> None:
    made = program(Reader(kind))
    assert_trains_alike(made, way, lambda micro_batches: train_eagerly(made, micro_batches, STEPS), STEPS)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["data", "searched"])
def test_lengths_that_a_module_holds_are_those_of_the_whole_batch(way: str) -> None:
    made = program(OfOneBatch())
    with pytest.raises(InvalidProgram, match=r"given 8 lengths for 4 sequences; .* a tensor among the inputs"):
        assert_trains_alike(made, way, lambda micro_batches: train_eagerly(made, micro_batches, STEPS), STEPS)


def test_data_parallelism_splits_packed_sequences_along_the_batch() -> None:
    made = program()
    graph, options = made.graph(), PlanOptions(pins=("input.0=S(0)",))
    plan = make_plan(graph, model="reader", batch_size=8, cluster=roomy_cluster(2), options=options)
    whole = sum(flop(op, graph.values) for op in graph.ops if op.role is Role.FORWARD)
    on_each = sum(task.body.flop for task in plan.tasks if task.kind is TaskKind.FORWARD and isinstance(task.body, Fragment))
    assert on_each < 0.52 * whole


def _longest(packed: nn.utils.rnn.PackedSequence) -> Tensor:
    return pad_packed_sequence(packed)[0]


def _shorter(packed: nn.utils.rnn.PackedSequence) -> Tensor:
    return pad_packed_sequence(packed, total_length=5)[0]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_longest, r"pad_packed_sequence with no total_length .* give total_length=x.size\(0\), here 7"),
        (_shorter, "pad_packed_sequence with total_length=5 lets a value decide"),
        (lambda packed: packed.data.square(), "do it to the padded batch, before pack_padded_sequence"),
        (lambda packed: 2 * packed.data, "do it to the padded batch, before pack_padded_sequence"),
        (lambda packed: torch.relu(packed.data), "do it to the padded batch, before pack_padded_sequence"),
        (lambda packed: packed.batch_sizes.sum(), "data and batch_sizes of a PackedSequence let a value decide"),
    ],
    ids=["no total length", "a total length below the batch's", "method of data", "product with data", "function of data", "batch sizes"],
)
def test_what_depends_on_the_values_of_lengths_is_refused_with_the_rewrite(
    function: Callable[[nn.utils.rnn.PackedSequence], Tensor], says: str
) -> None:
    class Odd(Reader):
        def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            return function(self.body(self.packed(self.embedding(tokens), lengths))[0]).sum()

    with pytest.raises(InvalidProgram, match=says):
        Program(Odd(), (TOKENS, LENGTHS)).graph()


@pytest.mark.parametrize(
    ("given", "says"),
    [([8] * 8, "has 1 to 7 steps"), ([1, 2] * 4, "not in decreasing order; .*enforce_sorted=False")],
    ids=["long", "unsorted"],
)
def test_a_list_of_lengths_that_the_batch_cannot_have_is_refused(given: list[int], says: str) -> None:
    class Odd(Reader):
        def packed(self, x: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
            return pack_padded_sequence(x, given, batch_first=True)

    with pytest.raises(InvalidProgram, match=says):
        program(Odd()).graph()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            [7, 3, 8, 1, 7, 2, 6, 4],
            r"given the lengths \[7, 3, 8, .*\], but .* has 1 to 7 steps, and sequence 2 has 8; .*cut what is longer",
        ),
        ([7, 3, 5, 0, 7, 2, 6, 4], "has 1 to 7 steps, and sequence 3 has 0; leave out what is empty"),
        ([7, 3, 5, 1, 7, 2, 6, 4], r"the lengths \[7, 3, 5, .*\] are not in decreasing order; .*enforce_sorted=False"),
    ],
    ids=["long", "empty", "unsorted"],
)
def test_a_batch_whose_lengths_torch_would_not_pack_ends_the_step_with_the_numbers(given: list[int], says: str) -> None:
    class Sorted(Reader):
        def packed(self, x: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
            return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)

    lengths = torch.tensor(given)
    with pytest.raises(RuntimeError):
        Sorted()(TOKENS, lengths)
    made = Program(Sorted(), (TOKENS, lengths, CLASSES), F.cross_entropy, optimizer=SGD(lr=0.5))
    with pytest.raises(InvalidProgram, match=says):
        regista.run(regista.plan(made, "local:1"), made, steps=1, performer=regista.Performer.REFERENCE)
