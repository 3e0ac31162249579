"""Intervals over texts, and of shares."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

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


class TestRankCorrelation:
    def test_one_group_is_spearmans_own(self):
        rng = np.random.default_rng(0)
        table = pd.DataFrame({"x": rng.normal(size=20), "y": rng.normal(size=20), "g": "a"})
        found = companion.rank_correlation(table, "x", "y", "g", resamples=200)
        expected = scipy.stats.spearmanr(table["x"], table["y"])
        assert found["value"] == pytest.approx(expected.statistic)
        assert found["low"] <= found["value"] <= found["high"]
        assert found["p"] == pytest.approx(expected.pvalue, abs=0.12)

    def test_a_difference_between_groups_is_no_correlation(self):
        rng = np.random.default_rng(0)
        parts = [pd.DataFrame({"x": rng.normal(k, 0.1, 30), "y": rng.normal(k, 0.1, 30), "g": k}) for k in range(5)]
        table = pd.concat(parts)
        assert scipy.stats.spearmanr(table["x"], table["y"]).statistic > 0.9
        assert abs(companion.rank_correlation(table, "x", "y", "g", resamples=200)["value"]) < 0.3

    def test_it_rejects_at_its_nominal_rate(self):
        rng = np.random.default_rng(1)
        groups = np.repeat(["a", "b"], 6)
        p = [
            companion.rank_correlation(
                pd.DataFrame({"x": rng.normal(size=12), "y": rng.normal(size=12), "g": groups}), "x", "y", "g", 99
            )["p"]
            for _ in range(150)
        ]
        low, high = companion.share(sum(value <= 0.1 for value in p), len(p))[1:]
        assert low <= 0.1 <= high

    def test_too_few_rows_are_refused(self):
        table = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 2.0], "g": "a"})
        with pytest.raises(companion.CompanionError, match="three rows in each"):
            companion.rank_correlation(table, "x", "y", "g")
