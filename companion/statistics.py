"""Intervals: means over texts, which are resampled whole, and shares of independent trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from companion.errors import CompanionError

__all__ = ["over_texts", "share"]


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
