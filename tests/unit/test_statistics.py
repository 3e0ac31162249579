"""Intervals over texts, and of shares."""

import numpy as np
import pandas as pd
import pytest

import companion


def table(values):
    rows = [{"text": i, "step": step, "value": v + step} for i, v in enumerate(values) for step in (0, 1)]
    return pd.DataFrame(rows)


def test_every_text_counts_once_and_rows_keep_their_names():
    found = companion.over_texts(table([1.0, 2.0, 6.0]), "value", ["step"])
    assert found["step"].tolist() == [0, 1]
    np.testing.assert_allclose(found["mean"], [3.0, 4.0])
    assert ((found["low"] < found["mean"]) & (found["mean"] < found["high"])).all()


def test_the_interval_of_a_mean_covers_it_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        row = companion.over_texts(table(rng.standard_normal(30)), "value", ["step"], resamples=400).iloc[0]
        hits += row["low"] <= 0 <= row["high"]
    assert 0.89 <= hits / 300 <= 0.98


def test_one_text_has_no_interval_and_a_missing_row_is_refused():
    assert companion.over_texts(table([1.0]), "value", ["step"])[["low", "high"]].isna().all(axis=None)
    with pytest.raises(companion.CompanionError, match="lack"):
        companion.over_texts(table([1.0, 2.0]).iloc[:-1], "value", ["step"])


def test_a_share_has_its_wilson_interval():
    share, low, high = companion.share(40, 40)
    assert (share, high) == (1.0, 1.0)
    assert low == pytest.approx(40 / (40 + 1.959964**2), abs=1e-6)
    with pytest.raises(companion.CompanionError, match="5 hits in 4"):
        companion.share(5, 4)
