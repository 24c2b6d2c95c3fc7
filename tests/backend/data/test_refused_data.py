"""Data that is missing, damaged or of another shape than the plan's is refused with its numbers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from backend.data import Loader, open_source
from backend.data.describe import Arrays, Images, Order, Synthetic, SyntheticTensor, Tokens
from planner.ir.errors import InvalidFile, InvalidProgram, Mismatch
from planner.ir.tensor import DType
from planner.lower.data_actors.loading import with_loading
from tests.backend.data.reader_cases import SIZE, folder, loader, plans, write_image


@pytest.fixture
def token_file(tmp_path: Path) -> Callable[[bytes], str]:
    def write(content: bytes) -> str:
        (tmp_path / "t.bin").write_bytes(content)
        return str(tmp_path / "t.bin")

    return write


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidFile, match=r"/nowhere/t\.bin cannot be read: No such file"):
        open_source(Tokens(path="/nowhere/t.bin", seq=4))


def test_a_size_that_is_no_multiple_is_refused(token_file: Callable[[bytes], str]) -> None:
    with pytest.raises(InvalidFile, match="has 21 bytes, which is no multiple of the 2 of a uint16"):
        open_source(Tokens(path=token_file(bytes(21)), seq=4))


def test_a_file_without_one_sample_is_refused(token_file: Callable[[bytes], str]) -> None:
    with pytest.raises(InvalidFile, match=r"has 4 tokens; one sample of seq = 4 needs 5"):
        open_source(Tokens(path=token_file(bytes(8)), seq=4))


@pytest.mark.parametrize(("dtype", "highest"), [("uint16", 65535), ("uint32", 2**32 - 1), ("int32", 2**31 - 1), ("int64", 2**63 - 1)])
def test_the_largest_token_of_every_dtype_arrives_unchanged(dtype: str, highest: int, token_file: Callable[[bytes], str]) -> None:
    path = token_file(np.array([0, highest, 1], dtype).tobytes())
    reader = open_source(Tokens(path=path, seq=2, dtype=dtype))
    inputs, targets = reader.prepare(dict(enumerate(reader.read([0], [0]))), [0, 1])
    assert (inputs.tolist(), targets.tolist()) == ([[0, highest]], [[highest, 1]])


def test_a_token_outside_of_the_vocabulary_is_refused(token_file: Callable[[bytes], str]) -> None:
    reader = open_source(Tokens(path=token_file(np.array([0, 7, 50], "<u2").tobytes()), seq=2, vocab=50))
    with pytest.raises(InvalidFile, match=r"holds token 50, the vocabulary has 0 \.\. 49"):
        reader.prepare(dict(enumerate(reader.read([0], [0]))), [0])


def test_arrays_of_unequal_length_are_refused(tmp_path: Path) -> None:
    for name, length in (("x", 3), ("y", 4)):
        np.save(tmp_path / f"{name}.npy", np.zeros((length, 2), np.float32))
    with pytest.raises(InvalidFile, match="all need the same number"):
        open_source(Arrays(paths=(str(tmp_path / "x.npy"), str(tmp_path / "y.npy"))))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"hello world", "is not a .npy file"),
        (np.zeros((4, 3), ">f4"), "little-endian"),
        (np.zeros((4, 3), np.float32, order="F"), "in C order"),
        (np.zeros((), np.float32), "samples lie along dim 0"),
        (np.zeros((4, 3), np.uint16), "dtype 'uint16'"),
    ],
    ids=["no array", "big-endian", "columns first", "no dim", "unsigned"],
)
def test_an_array_that_cannot_be_served_is_refused(content: object, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)  # type: ignore[arg-type]
    with pytest.raises(InvalidFile, match=why):
        open_source(Arrays(paths=(str(path),)))


def test_an_array_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((10, 4), np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidFile, match=r"has 287 bytes, its header promises 288; it was cut short"):
        open_source(Arrays(paths=(str(path),)))


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    with pytest.raises(InvalidFile, match="has 1 class folders and no image"):
        open_source(Images(folder=str(tmp_path), size=4))


def test_a_damaged_image_is_named_when_it_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(whole, "PNG")
    (tmp_path / "cats" / "a.png").write_bytes(whole.getvalue()[:200])
    reader = open_source(Images(folder=str(tmp_path), size=8))
    raw = dict(enumerate(reader.read([0], [0, 1])))
    with pytest.raises(InvalidFile, match=r"cats/a\.png is not an image that can be decoded"):
        reader.prepare(raw, [0])


def test_an_image_is_cropped_to_its_centre_and_scaled(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255  # the centred square is white, both sides are black
    write_image(tmp_path / "c" / "a.png", wide)
    reader = open_source(Images(folder=str(tmp_path), size=2))
    (image,) = reader.prepare(dict(enumerate(reader.read([0], [0, 1]))), [0])
    assert torch.equal(image, torch.ones(1, 3, 2, 2))


def test_synthetic_numbers_are_those_of_their_range() -> None:
    tensors = (
        SyntheticTensor(dtype=DType.FLOAT32, shape=(500,), high=2.0),
        SyntheticTensor(dtype=DType.INT64, shape=(500,), high=5),
        SyntheticTensor(dtype=DType.FLOAT32, shape=(2000,)),
    )
    reader = open_source(Synthetic(tensors=tensors, samples=2))
    uniform, integers, normal = reader.prepare(dict(enumerate(reader.read([0, 1], [0]))), [0, 1, 2])
    assert 0 <= float(uniform.min()) < 0.1 and 1.9 < float(uniform.max()) <= 2
    assert set(integers.flatten().tolist()) == set(range(5))
    assert abs(float(normal.mean())) < 0.1 and abs(float(normal.std()) - 1) < 0.1
    assert not torch.equal(uniform[0], uniform[1])


def test_synthetic_integers_without_a_range_are_refused() -> None:
    with pytest.raises(InvalidFile, match="integers need a whole one"):
        open_source(Synthetic(tensors=(SyntheticTensor(dtype=DType.INT64, shape=()),)))


# What is refused when it meets a Plan.


def test_data_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"the data makes int64\[6, 4\] per micro-batch, the plan was made for int64\[6, 8\]"):
        Loader(open_source(Tokens(path=str(folder() / "tokens.bin"), seq=4)), plans()[0])


def test_data_of_another_number_of_tensors_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="makes 1 tensors per sample, the plan was made for 2"):
        Loader(open_source(Arrays(paths=(str(folder() / "x.npy"),))), plans()[1])


def test_data_of_another_dtype_is_refused_unless_it_is_cast() -> None:
    paths = (str(folder() / "x.npy"), str(folder() / "x.npy"))
    with pytest.raises(InvalidProgram, match=r"input\.1"):
        Loader(open_source(Arrays(paths=paths)), plans()[1])


def test_a_chain_that_was_made_for_other_data_is_refused(token_file: Callable[[bytes], str]) -> None:
    chained = with_loading(plans()[0], loader("tokens").reader.raw)
    other = Tokens(path=token_file(bytes(400)), seq=SIZE, dtype="int32")
    with pytest.raises(InvalidProgram, match="plan the loading for this data"):
        Loader(open_source(other), chained)


def test_more_steps_than_the_epochs_have_are_refused() -> None:
    served = loader("tokens", Order(epochs=2))
    served.check_steps(3)
    with pytest.raises(InvalidProgram, match=r"4 steps of 12 samples need 48, the data has 20 x 2 epochs = 40; run at most 3 steps"):
        served.check_steps(4)


def test_a_worker_that_sees_other_data_refuses(token_file: Callable[[bytes], str]) -> None:
    path = token_file(np.zeros(5 * SIZE + 1, "<u2").tobytes())
    served = Loader(open_source(Tokens(path=path, seq=SIZE)), plans()[0])
    description = json.loads(json.dumps(served.to_json()))
    assert torch.equal(Loader.open(plans()[0], description)(0)[0], served(0)[0])
    token_file(np.zeros(6 * SIZE + 1, "<u2").tobytes())
    with pytest.raises(Mismatch, match="all hosts need the same data"):
        Loader.open(plans()[0], description)


def test_a_file_that_shrinks_is_refused_with_both_sizes(token_file: Callable[[bytes], str]) -> None:
    path = token_file(np.zeros(5 * SIZE + 1, "<u2").tobytes())
    reader = open_source(Tokens(path=path, seq=SIZE))
    Path(path).write_bytes(bytes(40))
    with pytest.raises(InvalidFile, match=r"has 40 bytes, it had 82 when it was opened, and bytes 32 \.\. 49 are wanted"):
        reader.read([2], [0])
