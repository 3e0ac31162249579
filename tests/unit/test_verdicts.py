"""A finding says how sure it is, or that it was not run."""

import pytest

import companion
from companion.verdicts import MIME


def test_findings_show_as_a_table_and_as_data():
    rows = [
        companion.Finding("C9", "zoo/<b>", "holds", "ρ", 0.7, 0.6, 0.8, "one half", "fig-x"),
        companion.Finding("C9", "gpt2", "not run here", "no hub"),
    ]
    bundle = companion.findings(rows)._repr_mimebundle_()
    assert [entry["verdict"] for entry in bundle[MIME]] == ["holds", "not run here"]
    assert bundle[MIME][0]["low"] == 0.6
    assert "zoo/&lt;b&gt;" in bundle["text/html"]
    assert "0.600 to 0.800" in bundle["text/html"]


def test_a_finding_without_interval_or_null_is_refused():
    with pytest.raises(companion.CompanionError, match="needs a value, an interval and a null"):
        companion.Finding("C9", "gpt2", "holds", "ρ", 0.7)
    with pytest.raises(companion.CompanionError, match="needs a value, an interval and a null"):
        companion.Finding("C9", "gpt2", "holds", "ρ", 0.7, 0.6, 0.8)
    with pytest.raises(companion.CompanionError, match="verdict='perhaps' is unknown"):
        companion.Finding("C9", "gpt2", "perhaps", "ρ", 0.7, 0.6, 0.8, "one half")
