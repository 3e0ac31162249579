"""Chapters are executed when something changed, whole or not at all, and a failure says where."""

import json
from pathlib import Path

import nbformat
import pytest
import runner

HEAD = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter

"""


def cell(code, tags=""):
    return f"```{{code-cell}} ipython3\n{tags}{code}\n```\n\n"


def chapter(folder, name, *cells):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(HEAD + "".join(map(cell, cells)))


@pytest.fixture
def folders(tmp_path):
    return {"sources": tmp_path / "sources", "built": tmp_path / "built"}


def outputs(folders, name):
    notebook = nbformat.read(folders["built"] / f"{name}.ipynb", as_version=4)
    return "".join(o.get("text", "") for c in notebook.cells if c.cell_type == "code" for o in c.outputs)


def test_chapters_are_executed_once_and_again_only_where_the_source_changed(folders):
    chapter(folders["sources"], "one", "print(6 * 7)")
    chapter(folders["sources"], "two", "print('two')")
    assert {p.stem for p in runner.run(**folders)} == {"one", "two"}
    assert outputs(folders, "one") == "42\n"
    assert runner.run(**folders) == []
    chapter(folders["sources"], "one", "print(6 * 9)")
    assert [p.stem for p in runner.run(**folders)] == ["one"]
    assert outputs(folders, "one") == "54\n"
    rows = runner.provenance(folders["built"])
    assert [row["chapter"] for row in rows] == ["one", "two"]
    assert all(row["profile"] == "embedded" and row["versions"]["torch"] for row in rows)


def test_a_failed_cell_stops_with_chapter_cell_and_error_and_leaves_the_last_good_notebook(folders):
    chapter(folders["sources"], "one", "print('good')")
    runner.run(**folders)
    before = (folders["built"] / "one.ipynb").read_bytes()
    chapter(folders["sources"], "one", "a = 1", "b = a / 0  # the culprit", "print('never')")
    with pytest.raises(runner.ChapterError) as error:
        runner.run(**folders)
    for part in ("chapter one", "cell 2", "ZeroDivisionError", "the culprit"):
        assert part in str(error.value)
    assert (folders["built"] / "one.ipynb").read_bytes() == before
    assert [p.name for p in folders["built"].iterdir()] == ["one.ipynb"]


def test_a_chapter_that_never_ran_leaves_nothing_behind(folders):
    chapter(folders["sources"], "one", "raise SystemError('no')")
    with pytest.raises(runner.ChapterError, match="SystemError"):
        runner.run(**folders)
    assert list(folders["built"].iterdir()) == []


def test_a_notebook_cut_short_on_disk_is_made_again(folders):
    chapter(folders["sources"], "one", "print('good')")
    runner.run(**folders)
    path = folders["built"] / "one.ipynb"
    path.write_bytes(path.read_bytes()[:200])
    assert [p.stem for p in runner.run(**folders)] == ["one"]


def test_the_hash_covers_source_parameters_package_and_versions(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text("x = 1")
    chapter(tmp_path / "sources", "one", "print(1)")
    source = tmp_path / "sources" / "one.md"
    keys = [runner.digest(source, "embedded", package)]
    (package / "module.py").write_text("x = 2")
    keys.append(runner.digest(source, "embedded", package))
    monkeypatch.setitem(runner.PROFILES, "embedded", {"one": {"seed": 1}})
    keys.append(runner.digest(source, "embedded", package))
    monkeypatch.setattr(runner, "version", lambda name: "0")
    keys.append(runner.digest(source, "embedded", package))
    source.write_text(source.read_text().replace("print(1)", "print(2)"))
    keys.append(runner.digest(source, "embedded", package))
    assert len(set(keys)) == 5
    source.write_text(source.read_text() + "\nMore.\n")
    assert runner.digest(source, "embedded", package) == keys[-1]


def test_new_prose_and_captions_are_set_around_outputs_that_are_there(folders, monkeypatch):
    folders["sources"].mkdir()
    caption = "---\nmystnb:\n  figure:\n    caption: {}\n---\n"
    text = HEAD + "Old.\n\n" + cell("seed = 0", ":tags: [parameters]\n\n") + cell("print(seed)", caption.format("Old"))
    (folders["sources"] / "one.md").write_text(text)
    monkeypatch.setitem(runner.PROFILES, "embedded", {"one": {"seed": 5}})
    runner.run(**folders)
    before = runner.provenance(folders["built"])[0]
    (folders["sources"] / "one.md").write_text(text.replace("Old", "New") + "\nMore.\n")
    assert runner.run(**folders) == []  # nothing is executed
    assert outputs(folders, "one") == "5\n"
    notebook = nbformat.read(folders["built"] / "one.ipynb", as_version=4)
    whole = json.dumps(notebook)
    assert "New" in whole and "More." in whole and "Old" not in whole
    assert [c.cell_type for c in notebook.cells] == ["markdown", "code", "code", "code", "markdown"]
    assert notebook.cells[3].metadata["mystnb"]["figure"]["caption"] == "New"
    after = runner.provenance(folders["built"])[0]
    assert {name for name in after if after[name] != before[name]} == {"text"}


def test_parameters_reach_the_cell_that_is_tagged_for_them(folders, monkeypatch):
    folders["sources"].mkdir()
    text = HEAD + cell("seed = 0", ":tags: [parameters]\n\n") + cell("print(seed)")
    (folders["sources"] / "one.md").write_text(text)
    monkeypatch.setitem(runner.PROFILES, "embedded", {"one": {"seed": 5}})
    runner.run(**folders)
    assert outputs(folders, "one") == "5\n"


def test_an_unknown_profile_and_an_empty_folder_are_refused(folders):
    with pytest.raises(runner.ChapterError, match="unknown profile 'big'; there are embedded"):
        runner.run("big", **folders)
    folders["sources"].mkdir()
    with pytest.raises(runner.ChapterError, match="no chapters"):
        runner.run(**folders)


def test_every_chapter_has_the_skeleton_and_three_figures():
    for source in runner.chapters():
        text = source.read_text(encoding="utf-8")
        places = [
            text.find(part)
            for part in (
                *("**Claim", "**What would refute", "**Verdict", "```{code-cell}"),
                *("## Verdict", "## What is not shown", "## Exercises"),
            )
        ]
        assert places == sorted(places) and places[0] > 0, source
        assert text.count("    name: fig-") >= 3, source
        assert text.count("```{exercise}") == text.count("```{solution-start}") >= 2, source
        assert ":tags: [parameters]" in text, source


def test_every_chapter_is_in_the_table_of_contents():
    contents = (runner.ROOT / "book" / "_toc.yml").read_text()
    for source in runner.chapters():
        assert f"notebooks/{source.stem}\n" in contents


def test_nothing_in_the_repository_names_a_folder_of_one_machine():
    tracked = [
        p for folder in ("companion", "book", "notebooks", "benchmarks") for p in (runner.ROOT / folder).rglob("*")
    ]
    tracked = [p for p in tracked if p.suffix in (".py", ".md", ".yml", ".css") and "_build" not in p.parts]
    assert len(tracked) > 20
    for path in tracked:
        text = path.read_text(encoding="utf-8")
        assert "/home/" not in text and "/root/" not in text and "/work/" not in text, path


def test_copies_of_the_configuration_are_links():
    link = runner.ROOT / "book" / "_config.yml"
    assert link.is_symlink() and link.resolve() == runner.ROOT / "_config.yml"
    assert not Path(link.readlink()).is_absolute()
