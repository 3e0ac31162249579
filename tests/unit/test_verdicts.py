"""A finding says how sure it is, or that it was not run."""

import pytest

import companion
from companion.verdicts import MIME, in_words


def test_findings_show_as_a_table_and_as_data():
    rows = [
        companion.Finding("C9", "zoo/<b>", "holds", "ρ", 0.7, 0.6, 0.8, "one half", "fig-x"),
        companion.Finding("C9", "gpt2", "not run here", "no hub"),
    ]
    bundle = companion.findings(rows)._repr_mimebundle_()
    assert [entry["verdict"] for entry in bundle[MIME]] == ["holds", "not run here"]
    assert bundle[MIME][0]["low"] == 0.6
    assert "zoo/&lt;b&gt;" in bundle["text/html"]
    assert "<td>0.6 to 0.8</td>" in bundle["text/html"]


def test_a_range_that_is_no_interval_says_what_it_is():
    row = companion.Finding("C10", "x", "holds", "cosine", 0.9, 0.7, 1.0, "zero", spread="worst to best direction")
    assert "0.7 to 1 (worst to best direction)" in companion.findings([row])._repr_mimebundle_()["text/html"]
    assert in_words(float("nan"), float("nan"), "95 % interval") == in_words(None, None, "range") == ""


def test_a_finding_without_interval_or_null_is_refused():
    with pytest.raises(companion.CompanionError, match="needs a value, an interval and a null"):
        companion.Finding("C9", "gpt2", "holds", "ρ", 0.7)
    with pytest.raises(companion.CompanionError, match="needs a value, an interval and a null"):
        companion.Finding("C9", "gpt2", "holds", "ρ", 0.7, 0.6, 0.8)
    with pytest.raises(companion.CompanionError, match="verdict='perhaps' is unknown"):
        companion.Finding("C9", "gpt2", "perhaps", "ρ", 0.7, 0.6, 0.8, "one half")
