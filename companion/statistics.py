"""Intervals: means over texts, which are resampled whole, and shares of independent trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binomtest, rankdata

from companion.errors import CompanionError

__all__ = ["over_texts", "rank_correlation", "share"]


def over_texts(
    table: pd.DataFrame, value: str, by: Sequence[str], resamples: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Mean over texts of a value, with a 95 % percentile interval from resampled texts.

    Parameters
    ----------
    table : DataFrame
        One row for each text and each combination of ``by``; the text's number in the column ``text``.
    value : str
        Column to average; every text counts once.
    by : sequence of str
        Columns that tell the rows of one text apart.
    resamples, seed : int
        Number of bootstrap resamples, and their seed. The same resamples serve every row.

    Returns
    -------
    DataFrame
        Columns ``by``, mean, low, high (empty for fewer than two texts).

    Raises
    ------
    CompanionError
        If a text lacks some of the combinations.
    """
    matrix = table.pivot_table(index=list(by), columns="text", values=value, sort=False, observed=True)
    if matrix.isna().any(axis=None):
        raise CompanionError("some texts lack some rows, so that they cannot be averaged text by text")
    values = matrix.to_numpy()
    texts = values.shape[1]
    low = high = np.full(len(values), np.nan)
    if texts > 1:
        weights = np.random.default_rng(seed).multinomial(texts, np.full(texts, 1 / texts), size=resamples).T / texts
        low, high = np.quantile(values @ weights, [0.025, 0.975], axis=1)
    return matrix.index.to_frame(index=False).assign(mean=values.mean(axis=1), low=low, high=high)


def share(hits: int, trials: int) -> tuple[float, float, float]:
    """Share of hits in independent trials, with its 95 % Wilson interval: (share, low, high)."""
    if not 0 <= hits <= trials or trials < 1:
        raise CompanionError(f"{hits} hits in {trials} trials is no share")
    interval = binomtest(hits, trials).proportion_ci(method="wilson")
    return hits / trials, float(interval.low), float(interval.high)


def rank_correlation(
    table: pd.DataFrame, x: str, y: str, group: str, resamples: int = 2000, seed: int = 0
) -> dict[str, float]:
    """Return Spearman's correlation within groups, averaged over them, with an interval and a p-value.

    Differences between groups do not count: each group is ranked by itself and weighs by its number of rows.

    Parameters
    ----------
    table : DataFrame
        One row an observation.
    x, y : str
        The two quantities.
    group : str
        Column of the groups; each needs three rows.
    resamples, seed : int
        Of the interval (rows resampled within groups) and of the p-value (y permuted within groups), and their seed.

    Returns
    -------
    dict
        value, low, high (95 %), p (two-sided), n.

    Raises
    ------
    CompanionError
        If a group has fewer than three rows.
    """
    groups = [rows[[x, y]].to_numpy(float) for _, rows in table.groupby(group, sort=False, observed=True)]
    if not groups or min(map(len, groups)) < 3:
        raise CompanionError(f"a rank correlation within groups of {group!r} needs three rows in each")
    rng = np.random.default_rng(seed)
    n = sum(map(len, groups))

    def mean(parts: Sequence[np.ndarray]) -> float:
        return sum(len(part) * _spearman(part) for part in parts) / n

    value = mean(groups)
    drawn = [mean([part[rng.integers(0, len(part), len(part))] for part in groups]) for _ in range(resamples)]
    shuffled = [
        mean([np.column_stack([part[:, 0], rng.permutation(part[:, 1])]) for part in groups]) for _ in range(resamples)
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    p = (1 + sum(abs(other) >= abs(value) - 1e-12 for other in shuffled)) / (1 + resamples)
    return {"value": value, "low": float(low), "high": float(high), "p": p, "n": float(n)}


def _spearman(part: np.ndarray) -> float:
    ranks = [rankdata(column) for column in part.T]
    if min(np.ptp(rank) for rank in ranks) == 0:
        return 0.0  # a resample of one row again and again shows no correlation
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
