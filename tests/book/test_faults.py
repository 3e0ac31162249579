"""What a writer gets wrong stops the build, names the page and the cause, and leaves the last good site in place."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import browser
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
CELL = '```{code-cell} ipython3\nfrom myst_nb import glue\n\nglue("known", 6 * 7, display=False)\n```\n\n'
GOOD = HEAD + CELL + "It is {glue:text}`known`.\n"


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A small book with this one's configuration and extension, built once."""
    root = tmp_path_factory.mktemp("small")
    for name in ("_config.yml", "companion"):
        (root / name).symlink_to(runner.ROOT / name)
    (root / "book").mkdir()
    shutil.copytree(runner.ROOT / "book" / "_ext", root / "book" / "_ext", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(runner.ROOT / "book" / "_static", root / "book" / "_static")
    (root / "book" / "_config.yml").symlink_to("../_config.yml")
    shutil.copy(runner.ROOT / "book" / "references.bib", root / "book")
    kept = runner.ROOT / "book" / "_build" / "fetched"
    if kept.is_dir():
        shutil.copytree(kept, root / "book" / "_build" / "fetched")
    (root / "book" / "_toc.yml").write_text("format: jb-book\nroot: intro\nchapters:\n  - file: notebooks/one\n")
    (root / "book" / "intro.md").write_text("# A book\n\nOne page and one chapter.\n")
    (root / "notebooks").mkdir()
    (root / "notebooks" / "one.md").write_text(GOOD)
    done = build(root)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return root


@pytest.fixture
def page(book):
    """The chapter's source, whole again afterwards."""
    source = book / "notebooks" / "one.md"
    yield source
    source.write_text(GOOD)


def build(root, **environment):
    return subprocess.run(
        ["jupyter-book", "build", "book", "-W", "--keep-going"],
        cwd=root,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def stopped(root, *says, **environment):
    """Build; it must fail, say all that, and leave the page that was there."""
    site = root / "book" / "_build" / "html" / "notebooks" / "one.html"
    before = site.read_bytes()
    done = build(root, **environment)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    for words in says:
        assert words in told, told[-3000:]
    assert site.read_bytes() == before


def test_a_chapter_that_fails_names_its_cell_and_its_error(book, page):
    page.write_text(GOOD.replace("6 * 7", "6 / 0"))
    stopped(book, "chapter one, code cell 1", "ZeroDivisionError")


def test_a_glued_key_a_reference_and_a_figure_that_do_not_exist_are_named_with_their_page(book, page):
    wrong = "And {glue:text}`unknown`. See {prf:ref}`thm-nowhere` and [there](#nowhere).\n\n![a picture](missing.svg)\n"
    page.write_text(f"{GOOD}\n{wrong}")
    stopped(book, "one.ipynb", "unknown", "thm-nowhere", "'nowhere'", "missing.svg")


def test_an_unknown_profile_is_named_with_those_that_there_are(book):
    stopped(book, "unknown profile 'big'", "embedded, paper", PROFILE="big")


def test_a_file_of_the_site_that_cannot_be_had_is_named_with_what_to_do(book):
    fetched = book / "book" / "_build" / "fetched"
    fetched.rename(fetched.with_name("away"))
    try:
        stopped(
            book,
            "cannot be fetched",
            "go online once, or put",
            https_proxy="http://127.0.0.1:9",
            HTTPS_PROXY="http://127.0.0.1:9",
        )
    finally:
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.with_name("away").rename(fetched)


def test_a_folder_that_cannot_be_written_is_named(book, page):
    built = book / "book" / "notebooks"
    page.write_text(GOOD.replace("6 * 7", "6 * 8"))
    built.rename(built.with_name("moved"))
    built.write_text("a file where the folder should be")
    try:
        stopped(book, str(built))
    finally:
        built.unlink()
        built.with_name("moved").rename(built)


def test_without_a_browser_the_tests_say_what_to_install(monkeypatch, tmp_path):
    browser.executable.cache_clear()
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="is no file; give the path of a Chromium"):
        browser.executable()
    monkeypatch.delenv("CHROMIUM")
    monkeypatch.setattr(browser.shutil, "which", lambda name: None)
    failed = subprocess.CompletedProcess([], 1, "", "no network")
    monkeypatch.setattr(browser.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match=r"no Chromium: install one .* or set CHROMIUM=path; .*no network"):
        browser.executable()
    browser.executable.cache_clear()


def test_a_corrected_book_builds_again(book, page):
    page.write_text(GOOD.replace("It is", "It was"))
    done = build(book)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "It was" in (book / "book" / "_build" / "html" / "notebooks" / "one.html").read_text()
