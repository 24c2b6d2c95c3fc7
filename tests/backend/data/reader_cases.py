"""Small files of every kind of data, their sources and readers, and all their samples read in another way."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import regista
from backend.data import Loader, Reader, open_source
from backend.data.describe import Arrays, Images, Order, Source, Synthetic, SyntheticTensor, Tokens
from planner.ir.plan import Plan
from planner.ir.tensor import DType

LAID = Order(shuffle=False)
BATCH, MICRO_BATCHES, SIZE = 12, 2, 8


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
