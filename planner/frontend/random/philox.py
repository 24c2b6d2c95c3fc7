"""Philox 4x32-10 in torch: 128 bits of counter and 64 bits of key give four words of 32 bits [Salmon et al. 2011, "Parallel random numbers:
as easy as 1, 2, 3", section 3.3 and table 2].

    (1)  round:    (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0))     -> philox()
    (2)  key:      (k0, k1) <- (k0 + W0, k1 + W1), nine times, between the ten rounds

A word is an int64 between 0 and 2^32 - 1: torch has no unsigned arithmetic on every device.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["M0", "M1", "ROUNDS", "W0", "W1", "philox"]

# Salmon et al. 2011, table 2; Random123's philox.h has the same.
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10

_WORD = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Equations (1) and (2) on words of any shapes that broadcast.

    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [hex(int(word)) for word in philox((zero, zero, zero, zero), (zero, zero))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0, k1 = (k0 + W0) & _WORD, (k1 + W1) & _WORD
        high0, low0 = _product(M0, c0)
        high1, low1 = _product(M1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _product(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product, in halves of the multiplier: a product of 64 bits would not fit an int64."""
    upper, lower = (multiplier >> 16) * word, (multiplier & 0xFFFF) * word
    total = ((upper & 0xFFFF) << 16) + lower
    return (upper >> 16) + (total >> 32), total & _WORD
