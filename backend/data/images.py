"""A folder of images, one sub-folder per class, classes numbered in the order of their names.

read:     a file's bytes, padded to the largest file's size, and (length, class, sample)        -> SOURCE, waits for the disk
prepare:  decode, crop to a centred square, resize, scale to 0 .. 1, normalise, channels first  -> PREPARE, works on the processor
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from backend.data.describe import Images
from backend.data.reader import OpenFile
from planner.ir.errors import InvalidFile
from planner.ir.tensor import DType, TensorType
from planner.ir.text import content_id
from planner.lower.data_actors.loading import RawTensor

__all__ = ["SUFFIXES", "ImageReader"]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif"})
_PAGE_BYTES = 4096


class ImageReader:
    """See backend.data.reader.Reader."""

    def __init__(self, source: Images) -> None:
        root = Path(source.folder)
        if source.size < 1 or len(source.mean) != 3 or len(source.std) != 3 or min(source.std) <= 0:
            raise InvalidFile(
                f"images: size {source.size}, mean {source.mean}, std {source.std}; size is at least 1, and 3 channels have std > 0"
            )
        if not root.is_dir():
            raise InvalidFile(f"data folder {root} is not there; images lie in DIR/CLASS/FILE")
        self.classes = tuple(sorted(entry.name for entry in os.scandir(root) if entry.is_dir()))
        self._files: list[tuple[str, int, int]] = []
        for label, name in enumerate(self.classes):
            files = sorted((e for e in os.scandir(root / name) if Path(e.name).suffix.lower() in SUFFIXES), key=lambda e: e.name)
            self._files += [(e.path, label, e.stat().st_size) for e in files]
        if not self._files:
            raise InvalidFile(
                f"data folder {root} has {len(self.classes)} class folders and no image; images lie in DIR/CLASS/FILE with {sorted(SUFFIXES)}"
            )
        self.source = source
        self.num_samples = len(self._files)
        self._room = -(-max(size for _, _, size in self._files) // _PAGE_BYTES) * _PAGE_BYTES
        self.raw: tuple[RawTensor, ...] = (
            RawTensor(name="file", shape=(self._room,), dtype=DType.UINT8, inputs=(0,)),
            RawTensor(name="about", shape=(3,), dtype=DType.INT64, inputs=(0, 1)),
        )
        self.made: tuple[TensorType, ...] = (TensorType((3, source.size, source.size), DType.FLOAT32), TensorType((), DType.INT64))
        listing = [[os.path.relpath(path, root), label, size] for path, label, size in self._files]
        self.fingerprint = content_id(["images", source.size, list(source.mean), list(source.std), listing])
        self._mean = torch.tensor(source.mean).reshape(3, 1, 1)
        self._std = torch.tensor(source.std).reshape(3, 1, 1)

    def read(self, samples: Sequence[int], raw: Sequence[int]) -> list[Tensor]:
        about = torch.tensor([[self._files[s][2], self._files[s][1], s] for s in samples], dtype=torch.int64).reshape(-1, 3)
        if 0 not in raw:
            return [about for _ in raw]
        room = np.zeros((len(samples), self._room), np.uint8)
        for row, sample in enumerate(samples):
            path, _, size = self._files[sample]
            file = OpenFile(path)
            if file.size_bytes != size:
                raise InvalidFile(
                    f"data file {path} has {file.size_bytes} bytes, it had {size} when the folder was opened; leave data alone while a run reads it"
                )
            file.read_into(room[row, :size], 0)
        whole = torch.from_numpy(room)
        return [whole if number == 0 else about for number in raw]

    def prepare(self, raw: dict[int, Tensor], inputs: Sequence[int]) -> list[Tensor]:
        about = raw[1]
        values: list[Tensor] = []
        for number in inputs:
            if number == 1:
                values.append(about[:, 1].clone())
                continue
            images = torch.empty((len(about), *self.made[0].shape))
            for row, (length, _, sample) in enumerate(about.tolist()):
                images[row] = self._decoded(raw[0][row, :length], sample)
            values.append(images.sub_(self._mean).div_(self._std))
        return values

    def _decoded(self, content: Tensor, sample: int) -> Tensor:
        """float32 [3, size, size] in 0 .. 1."""
        size = self.source.size
        try:
            with Image.open(io.BytesIO(content.numpy().tobytes())) as image:
                side = min(image.size)
                left, top = (image.width - side) // 2, (image.height - side) // 2
                colours = image if image.mode == "RGB" else image.convert("RGB")
                # Cropped first: resizing a box of a larger image would let its surroundings bleed in.
                square = colours.crop((left, top, left + side, top + side)) if image.width != image.height else colours
                small = square.resize((size, size), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError) as error:  # what Pillow says of a damaged file
            raise InvalidFile(
                f"data file {self._files[sample][0]} is not an image that can be decoded: {error}; mend or remove it"
            ) from None
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).to(torch.float32).div_(255.0)
