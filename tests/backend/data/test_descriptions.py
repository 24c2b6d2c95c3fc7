"""Descriptions of data survive their text, and what is not understood is refused."""

from __future__ import annotations

import json

import pytest

from backend.data import parse_source
from backend.data.describe import Arrays, Images, Order, Source, Synthetic, SyntheticTensor, Tokens, load_source, source_json
from planner.ir.errors import InvalidFile, InvalidProgram
from planner.ir.tensor import DType
from planner.ir.text import canonical
from tests.backend.data.reader_cases import LAID, SOURCES


@pytest.mark.parametrize("kind", SOURCES)
def test_a_description_survives_its_text(kind: str) -> None:
    source = SOURCES[kind](Order(shuffle=False, seed=7, epochs=2))
    assert load_source(json.loads(canonical(source_json(source)))) == source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("tokens:a.bin?seq=128", Tokens(path="a.bin", seq=128)),
        ("tokens:a.bin?seq=4&dtype=int32&vocab=9&epochs=1", Tokens(path="a.bin", seq=4, dtype="int32", vocab=9, order=Order(epochs=1))),
        (
            "arrays:x.npy,y.npy?to=float32,int64&seed=5",
            Arrays(paths=("x.npy", "y.npy"), to=(DType.FLOAT32, DType.INT64), order=Order(seed=5)),
        ),
        ("images:pics?size=64&shuffle=0", Images(folder="pics", size=64, order=LAID)),
        ("images:pics?size=8&mean=0.1,0.2,0.3&std=2", Images(folder="pics", size=8, mean=(0.1, 0.2, 0.3), std=(2.0, 2.0, 2.0))),
        (
            "synthetic:float32[3,8],int64[]:10?samples=9&wait_s=0.5",
            Synthetic(
                tensors=(SyntheticTensor(dtype=DType.FLOAT32, shape=(3, 8)), SyntheticTensor(dtype=DType.INT64, shape=(), high=10)),
                samples=9,
                wait_s=0.5,
            ),
        ),
    ],
)
def test_the_form_of_the_command_line(text: str, source: Source) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("corpus.bin", "is not understood; write tokens:PATH"),
        ("tokens:", "is not understood"),
        ("tokens:a?seq=x", "a whole number is needed, as in tokens:PATH"),
        ("tokens:a", "seq = nothing"),
        ("tokens:a?seq=4&sequence=4", r"\['sequence'\] are not known"),
        ("tokens:a?seq=4&seq=5", "each once"),
        ("arrays:a?to=decimal", "dtype 'decimal'"),
        ("images:a?size=4&std=dark", "std = 'dark'"),
        ("synthetic:float32", "write a dtype and the shape"),
        ("synthetic:float32[0]", "write a dtype and the shape"),
    ],
)
def test_a_description_that_is_not_understood_is_refused(text: str, why: str) -> None:
    with pytest.raises((InvalidFile, InvalidProgram), match=why):
        parse_source(text)
