"""A framework's settings while they are read: each value checked as it is taken, and nothing left over without being named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import TypeVar

from planner.ir.errors import InvalidFile, Unsupported

__all__ = ["Settings"]

_MOST = 2**53
T = TypeVar("T")


class Settings:
    """Values by name.  What is asked for counts as taken; ``rest`` sorts what was not.

    Args:
        spelled: how a name is written in messages: ``--{}`` for arguments.
    """

    def __init__(self, values: Mapping[str, object], *, spelled: str = "{}") -> None:
        self._values = dict(values)
        self._spelled = spelled
        self._taken: set[str] = set()

    def name(self, name: str) -> str:
        return self._spelled.format(name)

    def given(self, name: str) -> bool:
        """Whether it has a value; asking takes it."""
        self._taken.add(name)
        return self._values.get(name) is not None

    def need(self, *names: str) -> None:
        """Raises InvalidFile where one of them has no value."""
        missing = [name for name in names if not self.given(name)]
        if not missing:
            return
        near = [n for name in missing for n in get_close_matches(name, [n for n in self._values if n not in self._taken], n=1, cutoff=0.75)]
        slip = f" (is {self.name(near[0])} a slip of the pen?)" if near else ""
        raise InvalidFile(
            f"{', '.join(map(self.name, missing))} {'are' if len(missing) > 1 else 'is'} missing{slip}; write {'them' if len(missing) > 1 else 'it'} "
            f"into the job, or give --family NAME where its model is one of ours"
        )

    def truth(self, name: str, default: bool = False) -> bool:
        """Raises InvalidFile where the value is neither true nor false."""
        if not self.given(name):
            return default
        value = self._values[name]
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        raise self._refused(name, "true or false is needed")

    def count(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number.

        Raises:
            InvalidFile: missing without a default, no whole number, or below ``least``.
        """
        if not self.given(name):
            if default is None:
                self.need(name)
                raise AssertionError(name)
            return default
        value = self._values[name]
        try:
            number = float(str(value)) if not isinstance(value, bool) else float("nan")
        except ValueError:
            number = float("nan")
        if not isfinite(number) or number != int(number) or not least <= number < _MOST:
            raise self._refused(name, f"a whole number of at least {least} is needed")
        return int(number)

    def number(self, name: str, default: float) -> float:
        """A finite number of at least 0."""
        if not self.given(name):
            return default
        try:
            value = float(str(self._values[name]))
        except ValueError:
            value = float("nan")
        if not isfinite(value) or value < 0:
            raise self._refused(name, "a number of at least 0 is needed")
        return value

    def text(self, name: str, default: str = "") -> str:
        return str(self._values[name]).strip() if self.given(name) else default

    def choice(self, name: str, known: Mapping[str, T], default: T) -> T:
        """What a word stands for.

        Raises:
            Unsupported: the word is not known.
        """
        if not self.given(name):
            return default
        word = self.text(name)
        if word not in known:
            raise Unsupported(f"{self.name(name)} {word!r} is not predicted; known are {', '.join(known)}")
        return known[word]

    def items(self, name: str) -> tuple[object, ...]:
        """A list's items; of a single value, it."""
        if not self.given(name):
            return ()
        value = self._values[name]
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    def rest(
        self, without_effect: Collection[str], unmapped: Collection[str], known: Collection[str], ignored: Collection[str], way_out: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names that nobody took: those without effect, and those that predictions do not know, in the spelling of messages.

        Args:
            without_effect, unmapped: names, and beginnings of names, which end in ``*``.   known: names to suggest for a slip of the pen.
            ignored: what the user wants named and not refused.

        Raises:
            Unsupported: a name that is none of these.
        """
        quiet, named, unknown = [], [], []
        for name, value in self._values.items():
            if name in self._taken or value is None:
                continue
            if name in ignored or self.name(name) in ignored:
                named.append(self.name(name))
            elif _among(name, unmapped):
                if value is not False:
                    named.append(self.name(name))
            elif _among(name, without_effect):
                quiet.append(self.name(name))
            else:
                unknown.append(name)
        if unknown:
            near = {n: get_close_matches(n, [*known, *without_effect, *unmapped], n=1, cutoff=0.75) for n in unknown}
            said = ", ".join(f"{self.name(n)}" + (f" (did you mean {self.name(near[n][0])}?)" if near[n] else "") for n in unknown[:6])
            more = f" and {len(unknown) - 6} more" if len(unknown) > 6 else ""
            raise Unsupported(f"unknown: {said}{more}; {way_out}")
        return tuple(quiet), tuple(named)

    def _refused(self, name: str, needed: str) -> InvalidFile:
        return InvalidFile(f"{self.name(name)} = {self._values[name]!r}; {needed}")


def _among(name: str, names: Collection[str]) -> bool:
    return name in names or name.startswith(tuple(n[:-1] for n in names if n.endswith("*")))
