"""Readers: every part is a slice of the whole, the shuffled order is a permutation, and data that is missing or damaged is refused."""

from __future__ import annotations

import functools
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

import regista
from backend.data import Loader, Reader, open_source, parse_source
from backend.data.describe import Arrays, Images, Order, Source, Synthetic, SyntheticTensor, Tokens, load_source, source_json
from backend.data.permute import Permutation
from backend.data.reader import OpenFile
from planner.ir.errors import InvalidFile, InvalidProgram, Mismatch
from planner.ir.plan import Plan
from planner.ir.sbp import NdSbp
from planner.ir.tensor import DType
from planner.ir.text import canonical
from planner.lower.data_actors.loading import with_loading

LAID = Order(shuffle=False)
BATCH, MICRO_BATCHES, SIZE = 12, 2, 8


# The shuffled order.


@given(n=st.integers(1, 300), seed=st.integers(0, 2**80))
def test_the_shuffled_order_is_a_bijection(n: int, seed: int) -> None:
    assert sorted(map(Permutation(n, seed), range(n))) == list(range(n))


@given(n=st.integers(1, 2**50), data=st.data())
def test_the_shuffled_order_stays_in_range_at_any_size(n: int, data: st.DataObject) -> None:
    assert 0 <= Permutation(n, 1)(data.draw(st.integers(0, n - 1))) < n


def test_another_seed_is_another_order() -> None:
    orders = {tuple(map(Permutation(100, seed), range(100))) for seed in range(50)}
    assert len(orders) == 50
    assert tuple(range(100)) not in orders


def test_every_place_is_equally_likely() -> None:
    """Sample 0 goes to each of 16 places about 4000 / 16 times (chi-squared with 15 degrees of freedom: 1 in 10^5 lies above 50)."""
    counts = np.bincount([Permutation(16, seed)(0) for seed in range(4000)], minlength=16)
    assert ((counts - 250.0) ** 2 / 250.0).sum() < 50


def test_a_number_outside_is_refused() -> None:
    with pytest.raises(IndexError):
        Permutation(5, 0)(5)


# Whole and parts.


@functools.cache
def plans() -> tuple[Plan, Plan]:
    """For tokens, and for images and their classes."""
    text, pictures = (
        f"gpt?layers=1&batch={BATCH}&seq={SIZE}&vocab=32&width=8&heads=2",
        f"convnet?batch={BATCH}&size={SIZE}&channels=2&classes=3",
    )
    return tuple(regista.plan(f"zoo:{model}", "local:1", micro_batches=MICRO_BATCHES) for model in (text, pictures))  # type: ignore[return-value]


@functools.cache
def folder() -> Path:
    """Data of every kind; removed when the process ends."""
    keep = tempfile.TemporaryDirectory()
    folder.__dict__["keep"] = keep
    path, rng = Path(keep.name), np.random.default_rng(0)
    rng.integers(0, 32, 20 * SIZE + 1).astype("<u2").tofile(path / "tokens.bin")
    np.save(path / "x.npy", rng.standard_normal((20, 3, SIZE, SIZE)).astype(np.float32))
    np.save(path / "y.npy", rng.integers(0, 3, 20))
    for label in range(3):
        (path / "images" / f"class{label}").mkdir(parents=True)
        for number in range(6):
            write_image(path / "images" / f"class{label}" / f"{number}.png", pixels(label, number))
    return path


def pixels(label: int, number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng([label, number]).integers(0, 256, (SIZE, SIZE, 3), np.uint8)


def write_image(path: Path, values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    Image.fromarray(values).save(path)


SOURCES: dict[str, Callable[[Order], Source]] = {
    "tokens": lambda order: Tokens(path=str(folder() / "tokens.bin"), seq=SIZE, order=order),
    "arrays": lambda order: Arrays(paths=(str(folder() / "x.npy"), str(folder() / "y.npy")), order=order),
    "images": lambda order: Images(folder=str(folder() / "images"), size=SIZE, order=order),
    "synthetic": lambda order: Synthetic(
        tensors=(SyntheticTensor(dtype=DType.FLOAT32, shape=(3, SIZE, SIZE)), SyntheticTensor(dtype=DType.INT64, shape=(), high=3)),
        samples=20,
        order=order,
    ),
}


@functools.cache
def loader(kind: str, order: Order = LAID) -> Loader:
    return Loader(open_source(SOURCES[kind](order)), plans()[kind != "tokens"])


def whole_set(kind: str, reader: Reader) -> tuple[Tensor, ...]:
    """All samples in the order in which they lie, read without ``reader`` where there are files."""
    where = folder()
    match kind:
        case "tokens":
            tokens = torch.from_numpy(np.fromfile(where / "tokens.bin", "<u2").astype(np.int64))
            return tokens[:-1].reshape(-1, SIZE), tokens[1:].reshape(-1, SIZE)
        case "arrays":
            return torch.from_numpy(np.load(where / "x.npy")), torch.from_numpy(np.load(where / "y.npy"))
        case "images":
            values = np.stack([pixels(label, number) for label in range(3) for number in range(6)])
            return torch.from_numpy(values).permute(0, 3, 1, 2).float() / 255 * 2 - 1, torch.arange(3).repeat_interleave(6)
    return tuple(reader.prepare(dict(enumerate(reader.read(range(reader.num_samples), [0]))), [0, 1]))


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_holds_the_samples_of_its_order(kind: str, shuffle: bool) -> None:
    served = loader(kind, Order(shuffle=shuffle, seed=3))
    everything = whole_set(kind, served.reader)
    for step in range(3):
        samples = [s for m in range(MICRO_BATCHES) for s in served.samples(step, m, (0, BATCH // MICRO_BATCHES))]
        for served_part, whole in zip(served(step), everything, strict=True):
            torch.testing.assert_close(served_part, whole[samples], rtol=0, atol=1e-6 if kind == "images" else 0)


@st.composite
def boxes(draw: st.DrawFn, kind: str) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Any boxes of any batch inputs, at least one."""

    def box(number: int) -> tuple[tuple[int, int], ...]:
        spans = []
        for extent in (BATCH // MICRO_BATCHES, *loader(kind).reader.made[number].shape):
            offset = draw(st.integers(0, extent - 1))
            spans.append((offset, draw(st.integers(1, extent - offset))))
        return tuple(spans)

    return [(number, box(number)) for number in draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))]


@pytest.mark.parametrize("kind", SOURCES)
@given(data=st.data())
def test_a_part_is_the_slice_of_the_whole(kind: str, data: st.DataObject) -> None:
    served = loader(kind, Order(seed=data.draw(st.integers(0, 3))))
    step, micro_batch = data.draw(st.integers(0, 5)), data.draw(st.integers(0, MICRO_BATCHES - 1))
    asked = data.draw(boxes(kind))
    size = BATCH // MICRO_BATCHES
    batch = served(step)
    for (number, box), part in zip(asked, served.part(step, micro_batch, asked), strict=True):
        whole = batch[number][micro_batch * size : (micro_batch + 1) * size]
        for dim, (offset, length) in enumerate(box):
            whole = whole.narrow(dim, offset, length)
        assert part.is_contiguous()
        assert torch.equal(part, whole)


@pytest.mark.parametrize("kind", SOURCES)
def test_an_epoch_holds_every_sample_once_and_the_next_one_in_another_order(kind: str) -> None:
    served = loader(kind, Order(seed=1))
    total = served.reader.num_samples
    steps = 3 * total // BATCH + 1
    size = BATCH // MICRO_BATCHES
    stream = [s for step in range(steps) for m in range(MICRO_BATCHES) for s in served.samples(step, m, (0, size))]
    epochs = [stream[e * total : (e + 1) * total] for e in range(3)]
    assert all(sorted(epoch) == list(range(total)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_only_the_bytes_of_the_part_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = OpenFile.read_into
    monkeypatch.setattr(OpenFile, "read_into", lambda self, buffer, offset: (read.append(buffer.size), plain(self, buffer, offset))[1])
    loader("arrays").part(0, 0, [(0, ((1, 2), (0, 3), (0, SIZE), (0, SIZE)))])
    assert sum(read) == 2 * 3 * SIZE * SIZE * 4


def test_samples_stand_along_the_dim_that_micro_batches_slice(tmp_path: Path) -> None:
    """A Plan whose batch lies along dim 1 gets the transposed parts of one whose batch lies along dim 0."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20, handmade.WIDTH)).astype(np.float32))
    reader = open_source(Arrays(paths=(str(tmp_path / "x.npy"),)))
    plan = handmade.data_parallel(4, 2)
    x = plan.regst["x"]
    placed = replace(x.tensors[0], shape=x.tensors[0].shape[::-1], sbp=NdSbp.parse("S(1)"))
    turned = replace(
        plan,
        regsts=tuple(replace(r, tensors=(placed,)) if r.id == "x" else r for r in plan.regsts),
        batch_inputs=tuple(replace(entry, batch_dim=1) for entry in plan.batch_inputs),
    )
    one, other = Loader(reader, plan), Loader(reader, turned)
    assert torch.equal(one(2)[0], other(2)[0].T)
    for rank in range(4):
        (part,), (transposed,) = one.source(plan, plan.task["load"], rank, 3), other.source(turned, turned.task["load"], rank, 3)
        assert torch.equal(part, transposed.T) and transposed.is_contiguous()


# Descriptions.


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


# What is refused when it is opened.


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
        (np.zeros((4, 3), np.complex64), "dtype 'complex64'"),
    ],
    ids=["no array", "big-endian", "columns first", "no dim", "complex"],
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
    told = json.loads(json.dumps(served.to_json()))
    assert torch.equal(Loader.open(plans()[0], told)(0)[0], served(0)[0])
    token_file(np.zeros(6 * SIZE + 1, "<u2").tobytes())
    with pytest.raises(Mismatch, match="all hosts need the same data"):
        Loader.open(plans()[0], told)


def test_a_file_that_shrinks_is_refused_with_both_sizes(token_file: Callable[[bytes], str]) -> None:
    path = token_file(np.zeros(5 * SIZE + 1, "<u2").tobytes())
    reader = open_source(Tokens(path=path, seq=SIZE))
    Path(path).write_bytes(bytes(40))
    with pytest.raises(InvalidFile, match=r"has 40 bytes, it had 82 when it was opened, and bytes 32 \.\. 49 are wanted"):
        reader.read([2], [0])


def test_every_reader_is_a_reader() -> None:
    assert all(isinstance(loader(kind).reader, Reader) for kind in SOURCES)
