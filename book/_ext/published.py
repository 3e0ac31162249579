"""Make the notebooks that Colab and Binder open: ``python book/_ext/published.py FOLDER``.

``sphinx-tojupyter`` turns the book's pages into plain notebooks, with theorems, numbers and references in place. What a
chapter needs besides is added here: a first cell that installs the package, the tag of its parameters, the captions of
its figures, and a line that takes the GPU where there is one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import repository
import runner

BOOK = runner.ROOT / "book"
SITE = os.environ.get("COMPANION_SITE", "").removesuffix("/")  # where the book is published, if it is known

_FIRST = """\
# On a fresh machine, such as Colab: install this book's code, in the versions that made it. Torch stays as it is.
from importlib.util import find_spec

if find_spec("companion") is None:
    import subprocess
    import sys
    from importlib.metadata import version

    source = "companion-source"
    subprocess.run(["git", "clone", "--quiet", "{address}", source], check=True)
    subprocess.run(["git", "-C", source, "checkout", "--quiet", "{commit}"], check=True)
    subprocess.run([sys.executable, f"{{source}}/book/_ext/install.py"], check=True)
    for name in ("numpy", "pandas", "matplotlib"):
        loaded = getattr(sys.modules.get(name), "__version__", None)
        if loaded not in (None, version(name)):
            raise RuntimeError(f"{{name}} {{loaded}} was loaded before: restart the session and run all cells again")
"""
_DEVICE = """\
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
"""
_ENVIRONMENT = """\
name: companion
channels:
  - conda-forge
dependencies:
  - python=3.11
  - git
  - jupyterlab
"""
_POST_BUILD = """\
#!/bin/sh
# Binder has no GPU: take torch's small build, then the book's code as it was when these notebooks were made.
set -e
python -m pip install --quiet "{torch}" --extra-index-url https://download.pytorch.org/whl/cpu
git clone --quiet "{address}" /tmp/companion-source
git -C /tmp/companion-source checkout --quiet "{commit}"
python /tmp/companion-source/book/_ext/install.py
"""


class PublishError(Exception):
    """The notebooks cannot be made, with what to do."""


def publish(target: Path, address: str, commit: str) -> list[Path]:
    """Write every page as a notebook into a new folder, with what Binder needs; return the chapters.

    Parameters
    ----------
    target : Path
        A folder that does not exist yet.
    address, commit : str
        Where the first cell fetches the package, and which state of it.

    Raises
    ------
    PublishError
        If the folder exists or the book does not build.
    """
    if target.exists():
        raise PublishError(f"{target} exists; name a new folder")
    with tempfile.TemporaryDirectory(prefix="companion-") as folder:
        pages = _converted(Path(folder))
        draft = Path(folder) / "draft"
        for path in sorted(pages.rglob("*.ipynb")):
            inside = path.relative_to(pages)
            notebook = nbformat.read(path, as_version=4)
            source = next((s for s in _sources(inside) if s.is_file()), None)
            _finish(notebook, source, address, commit, len(inside.parts) - 1)
            (draft / inside).parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, draft / inside)
        shutil.copytree(
            BOOK / "_static", draft / "_static", ignore=lambda _, names: {n for n in names if n[-4:] != ".svg"}
        )
        _binder(draft / "binder", address, commit)
        shutil.move(draft, target)
    return sorted((target / "notebooks").glob("*.ipynb"))


def _converted(folder: Path) -> Path:
    """Build the book with sphinx-tojupyter; its doctrees are its own, so that the site's stay valid."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COMPANION_BUILDER": "jupyter",
    }
    builder = ["--builder", "custom", "--custom-builder", "jupyter"]
    done = subprocess.run(
        ["jupyter-book", "build", str(BOOK), *builder, "--path-output", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    pages = folder / "_build" / "jupyter"
    if done.returncode or not (pages / "intro.ipynb").is_file():
        raise PublishError(f"the book did not build:\n{(done.stdout + done.stderr)[-3000:]}")
    return pages


def _sources(inside: Path) -> list[Path]:
    return [runner.SOURCES / f"{inside.stem}.md", BOOK / inside.with_suffix(".md")]


def _finish(notebook: Any, source: Path | None, address: str, commit: str, depth: int) -> None:
    """Make one converted page a notebook that runs by itself and that is the same whenever it is made."""
    # Prose pages show code without being notebooks.
    executable = source is not None and source.read_text(encoding="utf-8").startswith("---\njupytext:")
    original = [cell for cell in jupytext.read(source).cells if cell.cell_type == "code"] if executable else []
    by_code = {_squeezed(cell.source): cell for cell in original}
    cells = []
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "markdown":
            cell.source = _links(_tidy(cell.source), depth)
        cells.append(cell)
        known = by_code.get(_squeezed(cell.source)) if cell.cell_type == "code" else None
        if known is None:
            continue
        tags = known.metadata.get("tags", [])
        if "hide-input" in tags:
            cell.metadata["jupyter"] = {"source_hidden": True}
        if caption := known.metadata.get("mystnb", {}).get("figure", {}).get("caption"):
            cells.append(nbformat.v4.new_markdown_cell(f"*{' '.join(caption.split())}*"))
        if "parameters" in tags:
            cell.metadata["tags"] = ["parameters"]
            if re.search(r'^device = "cpu"', cell.source, re.MULTILINE):
                cells.append(nbformat.v4.new_code_cell(_DEVICE.strip()))
    if original:
        first = nbformat.v4.new_code_cell(_FIRST.format(address=address, commit=commit).strip())
        cells.insert(1, first)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    notebook.cells = cells
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "colab": {"provenance": [], "toc_visible": True},
        }
    )


def _squeezed(code: str) -> str:
    return re.sub(r"\s+", "", code)


def _tidy(text: str) -> str:
    """Mend what the converter leaves: padded formulas, which GitHub does not set, and words said twice."""
    text = re.sub(r"(?<![\\$])\$ ([^$\n]+?) \$(?!\$)", r"$\1$", text)
    return text.replace("**Proof.**\n\nProof. ", "**Proof.** ").replace("## Solution to[ ", "### Solution to [")


def _links(text: str, depth: int) -> str:
    """Point links between pages at the published book, where its address is known: Colab follows no relative link."""
    if not SITE:
        return text
    base = "notebooks/" if depth else ""

    def absolute(found: re.Match[str]) -> str:
        path = os.path.normpath(base + found["path"])
        return f"]({SITE}/{path}.html{found['anchor'] or ''})"

    return re.sub(r"\]\((?P<path>[\w./-]+)\.ipynb(?P<anchor>#[\w-]+)?\)", absolute, text)


def _binder(folder: Path, address: str, commit: str) -> None:
    folder.mkdir(parents=True)
    (folder / "environment.yml").write_text(_ENVIRONMENT, encoding="utf-8")
    pins = (runner.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    post_build = folder / "postBuild"
    post_build.write_text(_POST_BUILD.format(address=address, commit=commit, torch=torch), encoding="utf-8")
    post_build.chmod(0o755)


def main() -> int:
    """Write the notebooks from the command line."""
    parser = argparse.ArgumentParser(description="Write the notebooks that Colab and Binder open.")
    parser.add_argument("folder", type=Path, help="where to, a folder that does not exist yet")
    target = parser.parse_args().folder
    address, commit = repository.address(runner.ROOT), repository.commit(runner.ROOT)
    try:
        if not address or not commit:
            raise PublishError("no address for the notebooks to install from; set COMPANION_REPOSITORY=https://...")
        made = publish(target, address, commit)
    except PublishError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(made)} chapters are in {target}, installing {commit[:12]} from {address}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
