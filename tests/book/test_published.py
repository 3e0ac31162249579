"""The notebooks that Colab and Binder open run through in a bare environment, outside the clone."""

import os
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import install
import jupytext
import nbformat
import published
import pytest
import repository
import results
import runner
from hub import Hub
from networks import CONFIGS, random_network, save_tokenizer

from companion.sources import HUB_MODELS

CHAPTERS = [source.stem for source in runner.chapters()]


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_published_chapter_runs_through_in_a_bare_environment(bare, name):
    done = bare.result(name)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_first_cell_installs_from_the_repository_and_leaves_torch_alone(bare):
    for name in CHAPTERS:
        bare.result(name)
    script = "import companion, sys; print(companion.__file__)"
    done = subprocess.run([bare.python, "-c", script], capture_output=True, text=True, cwd=bare.folder)
    assert Path(done.stdout.strip()).is_relative_to(bare.folder / "venv"), done.stderr
    assert bare.torch == bare.made.result()


def test_the_papers_models_can_be_run_from_their_notebook_alone(bare, tmp_path):
    """Against a hub on this machine; what it packs is what ``make import`` takes."""
    bare.result(CHAPTERS[-1])  # the machine does one thing at a time
    folder = tmp_path / "hub" / HUB_MODELS["gpt2"][0]
    random_network(CONFIGS["gpt2"]).save_pretrained(folder)
    save_tokenizer(folder)
    hub = Hub(tmp_path / "hub")
    hub.revisions.add(HUB_MODELS["gpt2"][1])
    try:
        models = {"models": "{gpt2: english, gpt2-xl: english}"}
        done = bare.execute("paper-models", models, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "cache"))
    finally:
        hub.close()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "packed 1 models: gpt2" in (bare.folder / "paper-models.ipynb").read_text()
    assert results.unpack(bare.folder / "results.zip", tmp_path / "results") == ["gpt2"]


def test_the_page_of_the_papers_models_names_all_of_them():
    page = jupytext.read(runner.ROOT / "book" / "paper-models.md")
    (code,) = (cell.source for cell in page.cells if "parameters" in cell.metadata.get("tags", []))
    found = {}
    exec(code, found)
    assert set(found["models"]) == set(runner.PROFILES["paper"]["feed-forward"]["models"])


def test_a_chapter_reads_as_a_plain_notebook(notebooks):
    for name in CHAPTERS:
        notebook = nbformat.read(notebooks / "notebooks" / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        for syntax in ("{glue:", "{cite", "{doc}", "{prf:", "```{", ":label:"):
            assert syntax not in text, (name, syntax)
        source = jupytext.read(runner.SOURCES / f"{name}.md")
        captions = [c.metadata.mystnb.figure.caption for c in source.cells if "figure" in c.metadata.get("mystnb", {})]
        assert all(" ".join(caption.split()) in text for caption in captions), name
        assert [c.metadata.tags for c in notebook.cells if "tags" in c.metadata] == [["parameters"]], name
        code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        assert "companion-source" in code[0] and not any(cell.outputs for cell in notebook.cells if "outputs" in cell)
        wants_gpu = any(re.search(r"^device = \"cpu\"", cell, re.MULTILINE) for cell in code)
        assert wants_gpu == any("torch.cuda.is_available()" in cell for cell in code if "texts" not in cell), name


def test_what_the_launch_buttons_open_is_there(notebooks, site):
    for page in [*(site / "notebooks").glob("*.html"), site / "paper-models.html"]:
        (path,) = set(re.findall(r"/owner/name/blob/notebooks/([^\"]+)", page.read_text(encoding="utf-8")))
        assert (notebooks / path).is_file(), page
    assert os.access(notebooks / "binder" / "postBuild", os.X_OK)


def test_notebooks_link_to_the_published_book_where_it_is_known(monkeypatch):
    text = "See [theory](theory.ipynb#thm-rate) and [all](../references.ipynb#id2), [out](https://arxiv.org/a.ipynb)."
    assert published._links(text, 1) == text
    monkeypatch.setattr(published, "SITE", "https://owner.github.io/name")
    assert published._links(text, 1) == (
        "See [theory](https://owner.github.io/name/notebooks/theory.html#thm-rate) and "
        "[all](https://owner.github.io/name/references.html#id2), [out](https://arxiv.org/a.ipynb)."
    )


def test_a_machines_own_torch_stays(monkeypatch):
    monkeypatch.setattr(install, "version", lambda name: "2.9.0+cu126")
    assert install.pins("# pins\nnumpy==2.4.0\ntorch==2.13.0\n") == ["numpy==2.4.0", "torch==2.9.0+cu126"]


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(published.PublishError, match="exists; name a new folder"):
        published.publish(tmp_path / "mine", "https://github.com/owner/name", "0" * 40)


@pytest.mark.parametrize(
    ("remote", "found"),
    [
        ("https://github.com/owner/name.git", "https://github.com/owner/name"),
        ("https://token@github.com/owner/name", "https://github.com/owner/name"),
        ("git@github.com:owner/name.git", "https://github.com/owner/name"),
        ("ssh://git@example.org/owner/name.git", "https://example.org/owner/name"),
        ("../elsewhere", None),
        (None, None),
    ],
)
def test_the_address_is_the_environments_or_the_remotes(tmp_path, monkeypatch, remote, found):
    for name in ("COMPANION_REPOSITORY", "GITHUB_REPOSITORY", "GITHUB_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if remote:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", remote], check=True)
    assert repository.address(tmp_path) == found
    monkeypatch.setenv("GITHUB_REPOSITORY", "them/theirs")
    assert repository.address(tmp_path) == "https://github.com/them/theirs"
    monkeypatch.setenv("COMPANION_REPOSITORY", "https://github.com/me/mine/")
    assert repository.address(tmp_path) == "https://github.com/me/mine"


def test_there_is_no_button_without_an_address():
    assert repository.launch(None) == repository.launch("https://example.org/owner/name") == {}
    assert repository.launch("https://github.com/owner/name")["repository_branch"] == repository.BRANCH


def test_the_book_pins_the_torch_that_the_tests_have():
    assert f"torch=={version('torch').partition('+')[0]}" in (runner.ROOT / "constraints.txt").read_text()
