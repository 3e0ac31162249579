"""Results travel whole and checked, and what is not whole changes nothing."""

import json
import zipfile

import pandas as pd
import pytest
import results

from companion.errors import StudyError
from companion.study import Study

WHOLE = dict.fromkeys(("model", "versions", "commit", "hardware", "time", "seed", "texts"), "x")


@pytest.fixture
def kept(tmp_path):
    folder = tmp_path / "kept"
    for name in ("gpt2", "org/model"):
        table = pd.DataFrame({"layer": [0, 1], "rho": [0.6, 0.7]})
        Study(name, {"layers": table}, WHOLE).save(folder / f"{name.replace('/', '--')}-0123.json")
    return folder


def rewritten(archive, change):
    """The archive with its entries passed through ``change``."""
    with zipfile.ZipFile(archive) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    change(entries)
    with zipfile.ZipFile(archive, "w") as new:
        for name, content in entries.items():
            new.writestr(name, content)


def test_studies_arrive_as_they_left(kept, tmp_path):
    assert results.pack(tmp_path / "r.zip", kept) == ["gpt2", "org/model"]
    assert results.unpack(tmp_path / "r.zip", tmp_path / "results") == ["gpt2", "org/model"]
    back = Study.read(tmp_path / "results" / "org--model.json")
    assert back.name == "org/model"
    assert back.provenance == WHOLE
    assert back.tables["layers"]["rho"].tolist() == [0.6, 0.7]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["gpt2.json", "org--model.json"]


def damaged(entries):
    entries["gpt2.json"] = entries["gpt2.json"].replace(b"0.6", b"0.9")


def added(entries):
    entries["more.json"] = b"{}"


def outside(entries):
    entries["../gpt2.json"] = entries.pop("gpt2.json")
    sums = json.loads(entries["SHA256SUMS.json"])
    sums["../gpt2.json"] = sums.pop("gpt2.json")
    entries["SHA256SUMS.json"] = json.dumps(sums).encode()


@pytest.mark.parametrize(
    ("change", "says"), [(damaged, "damaged or was changed"), (added, "but it holds"), (outside, "no name of a study")]
)
def test_an_archive_that_does_not_check_out_changes_nothing(kept, tmp_path, change, says):
    results.pack(tmp_path / "r.zip", kept)
    rewritten(tmp_path / "r.zip", change)
    with pytest.raises(StudyError, match=says):
        results.unpack(tmp_path / "r.zip", tmp_path / "results")
    assert not list((tmp_path / "results").glob("*")) if (tmp_path / "results").exists() else True
    assert not (tmp_path / "gpt2.json").exists()


def test_a_study_that_says_not_how_it_was_made_is_refused(tmp_path):
    Study("gpt2", {}, {"seed": 0}).save(tmp_path / "kept" / "gpt2-1.json")
    results.pack(tmp_path / "r.zip", tmp_path / "kept")
    with pytest.raises(StudyError, match="says not how it was computed"):
        results.unpack(tmp_path / "r.zip", tmp_path / "results")
    assert not list((tmp_path / "results").iterdir())


def test_what_is_no_archive_is_named(tmp_path):
    (tmp_path / "r.zip").write_text("text")
    with pytest.raises(StudyError, match="is no archive of results"):
        results.unpack(tmp_path / "r.zip", tmp_path / "results")
    with pytest.raises(StudyError, match="holds no study"):
        results.pack(tmp_path / "r.zip", tmp_path / "kept")
