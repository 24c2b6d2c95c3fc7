"""A shuffled order that needs no memory: a keyed permutation of 0 .. n-1, so that sample number i of an epoch is known without the others.

    i = (left, right)  --4 rounds:  left, right = right, left xor F(right, key)-->  bits mixed within 2^(2b) >= n
    outside of 0 .. n-1:  once more, until inside (cycle walking)

A Feistel network is a permutation of its blocks whatever F is [Luby & Rackoff 1988], and walking on along its cycles keeps it one on any
smaller range [Black & Rogaway 2002, "Ciphers with arbitrary finite domains", section 3].  Fewer than 4 steps of the walk on average: 2^(2b) < 4 n.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Permutation"]

_ROUNDS = 4
_MASK = 2**64 - 1


def _mixed(value: int, key: int) -> int:
    """F: 64 bits, well mixed [splitmix64's finaliser; Steele, Lea & Flood 2014]."""
    z = (value + key) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(frozen=True, slots=True)
class Permutation:
    """``Permutation(n, seed)(i)``: where number i of 0 .. n-1 goes.  n: at least 1.

    >>> sorted(map(Permutation(5, seed=1), range(5)))
    [0, 1, 2, 3, 4]
    """

    n: int
    seed: int

    def __call__(self, i: int) -> int:
        if not 0 <= i < self.n:
            raise IndexError(f"{i} is not in 0 .. {self.n - 1}")
        half = ((self.n - 1).bit_length() + 1) // 2
        if not half:
            return i
        low = (1 << half) - 1
        keys = [_mixed(number, _mixed(self.seed, number + 1)) for number in range(_ROUNDS)]
        while True:
            left, right = i >> half, i & low
            for key in keys:
                left, right = right, left ^ (_mixed(right, key) & low)
            i = left << half | right
            if i < self.n:
                return i
