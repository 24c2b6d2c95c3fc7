"""Quantiles and rank correlation, computed in one place: comparisons, sweeps, reports and the paper all call these two functions."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["quantile", "rank_correlation"]


def quantile(values: Sequence[float], share: float) -> float:
    """The ``share`` quantile (0.9: the 90th percentile), with linear interpolation between order statistics.

    Args:
        values: at least one.

    >>> quantile([4.0, 1.0, 2.0, 3.0], 0.5)
    2.5
    """
    import numpy as np  # here, so that the help of the command line does not wait for it

    return float(np.quantile(values, share))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation; equal values share the mean of their ranks.

    Returns:
        None where it is undefined: for fewer than 3 pairs, or where one side is constant.

    >>> rank_correlation([1.0, 2.0, 4.0], [3.0, 5.0, 4.0])
    0.5
    """
    if len(first) < 3 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    import pandas as pd  # a third of a second, which verbs that correlate nothing need not spend

    return float(pd.Series(first).rank().corr(pd.Series(second).rank()))
