"""From a description to its reader."""

from __future__ import annotations

from typing import assert_never

from backend.data.arrays import ArrayReader
from backend.data.describe import Arrays, Images, Source, Synthetic, Tokens
from backend.data.reader import Reader
from backend.data.synthetic import SyntheticReader
from backend.data.tokens import TokenReader

__all__ = ["open_source"]


def open_source(source: Source) -> Reader:
    """Open files and look at their sizes; no sample is read yet.

    Raises:
        InvalidFile: missing, truncated or of another form, with the numbers.
    """
    match source:
        case Tokens():
            return TokenReader(source)
        case Arrays():
            return ArrayReader(source)
        case Images():
            from backend.data.images import ImageReader  # Pillow is loaded where images are

            return ImageReader(source)
        case Synthetic():
            return SyntheticReader(source)
    assert_never(source)
