"""Programs from names of the zoo, from files and from exports; what cannot be loaded is refused with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.frontend import SGD, load_program
from planner.ir.errors import InvalidFile, InvalidProgram, RegistaError
from tests.planner.frontend.programs import X, Y, assert_transparent
from zoo import ZOO

FACTORY = """
import torch
from planner.frontend import Program
from zoo import ZOO

def small():
    return ZOO["mlp"](batch=4, width=8, hidden=8)

def number():
    return 3

def broken():
    raise KeyError("weights")
"""


def test_zoo_strings_take_numbers_and_words() -> None:
    program = load_program("zoo:gpt?layers=1&width=16&heads=2&vocab=32&batch=2&seq=4&optimizer=sgd", ZOO)
    assert program.batch_size == 2 and program.optimizer == SGD()


def test_a_file_gives_a_program(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(FACTORY)
    assert_transparent(load_program(f"{path}:small", ZOO), 2)


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.norm(self.linear(x)), y)


def test_an_exported_program_trains_as_its_module(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(WithLoss(), (X, Y), dynamic_shapes={"x": {0: batch}, "y": {0: batch}}), path)
    graph = assert_transparent(load_program(str(path), {}), 2)
    assert set(graph.gradients) == {"linear.weight", "linear.bias", "norm.weight", "norm.bias"}


def test_an_export_without_loss_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(8, 8), (X,)), path)
    with pytest.raises(InvalidProgram, match="must return the loss"):
        load_program(str(path), {})


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("zoo:resnet", InvalidProgram, "the zoo has no 'resnet'; it has .*convnet, .*resnet50"),
        ("zoo:mlp?depth", InvalidProgram, "key=value"),
        ("zoo:mlp?height=3", InvalidProgram, "height"),
        ("zoo:gpt?heads=7", InvalidProgram, "7 heads"),
        ("model", InvalidProgram, "zoo:NAME"),
        ("{}/missing.py:f", InvalidFile, "does not exist"),
        ("{}/missing.pt2", InvalidFile, "does not exist"),
        ("{}/model.py", InvalidProgram, "names no factory"),
        ("{}/model.py:other", InvalidProgram, "small, number, broken"),
        ("{}/model.py:number", InvalidProgram, "returned a int"),
        ("{}/model.py:broken", InvalidProgram, "KeyError"),
        ("{}/syntax.py:f", InvalidFile, "SyntaxError"),
        ("{}/syntax.pt2", InvalidFile, "not an exported program"),
    ],
)
def test_what_cannot_be_loaded_is_refused(tmp_path: Path, model: str, kind: type[RegistaError], words: str) -> None:
    (tmp_path / "model.py").write_text(FACTORY)
    (tmp_path / "syntax.py").write_text("def f(:")
    (tmp_path / "syntax.pt2").write_text("not a zip")
    with pytest.raises(kind, match=words):
        load_program(model.format(tmp_path), ZOO)
