"""The numbers of two runs can be compared, key by key."""

import math

import pandas as pd
import pytest
import quoted
import runner

CODE = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{{code-cell}} ipython3
from myst_nb import glue

glue("whole", 42, display=False)
glue("real", {real}, display=False)
glue("word", "{word}", display=False)
```
"""


def chapter(folder, real=0.5, word="left"):
    (folder / "sources").mkdir(parents=True)
    text = CODE.format(real=real, word=word)
    (folder / "sources" / "one.md").write_text(text)
    runner.run(sources=folder / "sources", built=folder / "built")
    return quoted.collect(folder / "built")


def test_glued_numbers_are_collected_and_compared(tmp_path):
    here, there = chapter(tmp_path / "a"), chapter(tmp_path / "b", 0.4, "right")
    assert dict(zip(here["key"], here["value"], strict=True)) == {"whole": "42", "real": "0.5", "word": "'left'"}
    found = quoted.compare(here, there).set_index("key")["difference"]
    assert found["whole"] == 0.0
    assert found["real"] == pytest.approx(0.2)
    assert math.isinf(found["word"])
    assert (quoted.compare(here, here)["difference"] == 0).all()
    fewer = quoted.compare(here, there[there["key"] != "whole"]).set_index("key")["difference"]
    assert math.isinf(fewer["whole"])


def test_the_site_carries_the_numbers_of_its_run(site):
    table = pd.read_csv(site / "_static" / "numbers.csv", dtype=str)
    assert set(table["chapter"]) == {source.stem for source in runner.chapters()}
    assert len(table) > 300
    assert (quoted.compare(quoted.collect(), table)["difference"] == 0).all()


def test_what_is_no_file_of_numbers_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr("sys.argv", ["quoted.py", str(tmp_path / "x.csv")])
    assert quoted.main() == 1
    assert "x.csv is no file of numbers" in capsys.readouterr().err
