"""Pictures inside a page, as data: whole on the page of their rows, small on the index, where each stands once.

small: a PNG or JPEG no wider than two dots per CSS pixel of a card, with 64 colours; an SVG without metadata, its coordinates to two decimals
(matplotlib writes six), as text, which is shorter than base64.
"""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from planner.ir.errors import InvalidFile

__all__ = ["data_uri", "shortened_svg", "small_data_uri"]

TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
SMALL_WIDTH, SMALL_COLOURS = 760, 64

_METADATA = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->|<\?xml.*?\?>|<!DOCTYPE.*?>", re.DOTALL)
_PLACED = re.compile(r'(?<=\s)(?:d|x|y|x1|x2|y1|y2|points)="[^"]*"')
_LONG = re.compile(r"(\.\d\d)\d+")


def data_uri(picture: Path) -> str:
    """The file as it is.   Raises InvalidFile: it cannot be read, or is no picture that a page may hold."""
    return f"data:{_type(picture)};base64,{base64.b64encode(_content(picture)).decode()}"


def small_data_uri(picture: Path) -> str:
    """The picture for a card; never longer than data_uri's.   Raises InvalidFile as data_uri."""
    whole = data_uri(picture)
    if picture.suffix == ".svg":
        text = shortened_svg(_content(picture).decode("utf-8"))
        small = f"data:{TYPES['.svg']}," + quote(text, safe=" /:=;,()!*'@$+.-_~")
        return min(whole, small, key=len)
    try:
        with Image.open(picture) as image:
            image.load()
            flat = Image.new("RGB", image.size, "white")
            rgba = image.convert("RGBA")
            flat.paste(rgba, mask=rgba.getchannel("A"))
    except OSError as error:
        raise InvalidFile(f"{picture}: is no picture ({error}); run the experiment that draws it") from error
    if flat.width > SMALL_WIDTH:
        flat = flat.resize((SMALL_WIDTH, max(1, round(flat.height * SMALL_WIDTH / flat.width))), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    flat.quantize(SMALL_COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return min(whole, f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}", key=len)


def shortened_svg(text: str) -> str:
    """The same drawing without metadata, and with coordinates cut to two decimals; factors of transforms stay whole.

    >>> shortened_svg('<!-- made --><path d="M 1.23456 7 L -0.5 2.0049" transform="scale(0.015625)"/>')
    '<path d="M 1.23 7 L -0.5 2.00" transform="scale(0.015625)"/>'
    """
    plain = _METADATA.sub("", text)
    cut = _PLACED.sub(lambda match: _LONG.sub(r"\1", match[0]), plain)
    return re.sub(r"\s*\n\s*", " ", cut).strip().replace("> <", "><")


def _type(picture: Path) -> str:
    try:
        return TYPES[picture.suffix]
    except KeyError:
        raise InvalidFile(f"{picture}: a page holds {', '.join(TYPES)}, no {picture.suffix or 'file without ending'}") from None


def _content(picture: Path) -> bytes:
    try:
        return picture.read_bytes()
    except OSError as error:
        raise InvalidFile(f"{picture}: cannot be read ({error}); run the experiment that draws it") from error
