"""Where training data comes from: frozen descriptions, which travel to the workers instead of the data.

tokens:PATH?seq=128&dtype=uint16        arrays:x.npy,y.npy        images:DIR?size=64        synthetic:float32[3,32,32],int64[]:10
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from planner.ir.errors import InvalidFile
from planner.ir.tensor import DType
from planner.ir.text import Json, decode, encode

__all__ = ["Arrays", "Images", "Order", "Source", "Synthetic", "SyntheticTensor", "Tokens", "load_source", "parse_source", "source_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """In which order samples come.

    shuffle: by a permutation of ``seed`` and the epoch (backend.data.permute); else as they lie.
    epochs: how often each sample may come; 0: as often as the run needs.
    """

    shuffle: bool = True
    seed: int = 0
    epochs: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.seed < 0:
            raise InvalidFile(f"epochs = {self.epochs}, seed = {self.seed}; neither is negative (epochs=0: as often as the run needs)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A file of token numbers without a header, little-endian.  Sample i: tokens i*seq .. i*seq + seq, the inputs; one further, the targets.

    dtype: ``uint16``, ``uint32``, ``int32`` or ``int64``.   vocab: tokens are below it, if it is given.
    """

    path: str
    seq: int
    dtype: str = "uint16"
    vocab: int = 0
    order: Order = field(default_factory=Order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """One .npy file per batch input, samples along its first dim.   to: dtypes to cast to; empty: as they lie."""

    paths: tuple[str, ...]
    to: tuple[DType, ...] = ()
    order: Order = field(default_factory=Order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A folder per class with image files.  Makes float32 [3, size, size], cropped to a centred square and normalised, and the class' int64.

    mean, std: of each channel, of values between 0 and 1.
    """

    folder: str
    size: int
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    order: Order = field(default_factory=Order)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTensor:
    """Of one sample.  Integers: uniform in 0 .. high - 1.  Floating numbers: uniform in 0 .. high, or standard normal where high is 0."""

    dtype: DType
    shape: tuple[int, ...]
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Drawn, not read: sample i is a function of (seed, i).   wait_s: what each reading act waits, as if storage were far away."""

    tensors: tuple[SyntheticTensor, ...]
    samples: int = 65536
    wait_s: float = 0.0
    order: Order = field(default_factory=Order)


Source = Tokens | Arrays | Images | Synthetic


def source_json(source: Source) -> Json:
    """Plain JSON data, back by load_source."""
    return encode(source)


def load_source(data: object) -> Source:
    """Raises InvalidFile when ``data`` is not what source_json made."""
    source: Source = decode(Source, data, "data")
    return source


def parse_source(text: str) -> Source:
    """A description from its form on the command line: ``KIND:WHERE?key=value&key=value``.

    Raises:
        InvalidFile: an unknown kind or key, a missing or malformed value; the message lists what is known.

    >>> parse_source("tokens:corpus.bin?seq=128&shuffle=0").order.shuffle
    False
    """
    head, _, query = text.partition("?")
    kind, colon, where = head.partition(":")
    if kind not in _KINDS or not colon or not where:
        raise InvalidFile(f"data {text!r} is not understood; write {', '.join(_FORMS.values())}")
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs) or (query and len(pairs) != query.count("&") + 1):
        raise InvalidFile(f"data {text!r}: options are key=value, joined by &, each once; write {_FORMS[kind]}")
    options = _Options(text, kind, given)
    order = Order(shuffle=bool(options.number("shuffle", 1)), seed=options.number("seed", 0), epochs=options.number("epochs", 0))
    source = _KINDS[kind](where, options, order)
    options.done()
    return source


@dataclass(slots=True)
class _Options:
    text: str
    kind: str
    given: Mapping[str, str]
    asked: set[str] = field(default_factory=set)

    def word(self, key: str, default: str) -> str:
        self.asked.add(key)
        return self.given.get(key, default)

    def number(self, key: str, default: int | None = None) -> int:
        self.asked.add(key)
        if key not in self.given and default is not None:
            return default
        if not self.given.get(key, "").isdecimal():
            raise InvalidFile(
                f"data {self.text!r}: {key} = {self.given.get(key, 'nothing')!s}; a whole number is needed, as in {_FORMS[self.kind]}"
            )
        return int(self.given[key])

    def real(self, key: str, default: float) -> float:
        word = self.word(key, str(default))
        return _real(word, f"data {self.text!r}: {key}")

    def done(self) -> None:
        unknown = sorted(set(self.given) - self.asked)
        if unknown:
            raise InvalidFile(f"data {self.text!r}: {unknown} are not known; the options of {self.kind} are {sorted(self.asked)}")


def _real(word: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise InvalidFile(f"{where} = {word!r}; a number of at least 0 is needed")
    return value


def _tokens(where: str, options: _Options, order: Order) -> Source:
    seq, dtype = options.number("seq"), options.word("dtype", "uint16")
    return Tokens(path=where, seq=seq, dtype=dtype, vocab=options.number("vocab", 0), order=order)


def _arrays(where: str, options: _Options, order: Order) -> Source:
    names = options.word("to", "")
    return Arrays(paths=tuple(where.split(",")), to=tuple(DType.parse(name) for name in names.split(",") if name), order=order)


def _images(where: str, options: _Options, order: Order) -> Source:
    def channels(key: str) -> tuple[float, ...]:
        words = options.word(key, "0.5").split(",")
        values = tuple(_real(word, f"data {options.text!r}: {key}") for word in words)
        return values * 3 if len(values) == 1 else values

    return Images(folder=where, size=options.number("size"), mean=channels("mean"), std=channels("std"), order=order)


def _synthetic(where: str, options: _Options, order: Order) -> Source:
    tensors = [_synthetic_tensor(piece, options.text) for piece in _pieces(where)]
    wait_s = options.real("wait_s", 0.0)
    return Synthetic(tensors=tuple(tensors), samples=options.number("samples", 65536), wait_s=wait_s, order=order)


def _pieces(part: str) -> list[str]:
    """Commas outside of brackets part the tensors.

    >>> _pieces("float32[3,8],int64[]:10")
    ['float32[3,8]', 'int64[]:10']
    """
    depth, pieces, start = 0, [], 0
    for place, letter in enumerate(part):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            pieces.append(part[start:place])
            start = place + 1
    return [*pieces, part[start:]]


def _synthetic_tensor(text: str, where: str) -> SyntheticTensor:
    body, _, high = text.partition(":")
    name, bracket, dims = body.partition("[")
    sizes = [dim for dim in dims.removesuffix("]").split(",") if dim]
    if not bracket or not dims.endswith("]") or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise InvalidFile(f"data {where!r}: {body!r} is not a tensor; write a dtype and the shape of one sample, as in float32[3,32,32]")
    return SyntheticTensor(
        dtype=DType.parse(name), shape=tuple(map(int, sizes)), high=_real(high or "0", f"data {where!r}: range of {body}")
    )


_KINDS: Mapping[str, Callable[[str, _Options, Order], Source]] = {
    "tokens": _tokens,
    "arrays": _arrays,
    "images": _images,
    "synthetic": _synthetic,
}
_FORMS = {
    "tokens": "tokens:PATH?seq=128&dtype=uint16",
    "arrays": "arrays:x.npy,y.npy",
    "images": "images:DIR?size=64",
    "synthetic": "synthetic:float32[3,32,32],int64[]:10",
}
