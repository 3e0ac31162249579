"""Sphinx extension: execute stale chapters before the book is read, list their provenance, ship scripts."""

from __future__ import annotations

import os
import shutil
import zlib
from importlib.metadata import files
from pathlib import Path
from typing import Any

import bundle
import foot
import glance
import guard
import picture
import quoted
import repository
import runner
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from companion.sources import WHEELS

# The one bundle that the pages load, and the fonts that it asks for.
_MATHJAX = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2/")


class ProvenanceDirective(Directive):  # type: ignore[misc]  # docutils is not typed
    """A table of how each executed chapter came to be."""

    def run(self) -> list[nodes.Node]:
        """Build the table from the notebooks' metadata."""
        rows = runner.provenance()
        if not rows:
            raise self.error("no chapter has been executed")
        self.state.document.settings.env.note_reread()
        names = ("chapter", "profile", "commit", "time", "seconds", "hardware")
        libraries = sorted({name for row in rows for name in row["versions"]})
        used = {name: ", ".join(sorted({row["versions"].get(name, "") for row in rows})) for name in libraries}
        weights = [
            (model, f"{wheel.package} {version}", wheel.sha256)
            for model, wheel in WHEELS.items()
            if (version := used.get(wheel.package))
        ]
        return [
            _table(names, [[row[name] for name in names] for row in rows]),
            _table(("model", "from", "SHA-256 of its weights"), weights),
            _table(("library", "version"), used.items()),
        ]


def _table(header: Any, rows: Any) -> nodes.table:
    group = nodes.tgroup("", *[nodes.colspec(colwidth=1) for _ in header], cols=len(header))

    def line(values: Any) -> nodes.row:
        return nodes.row("", *[nodes.entry("", nodes.paragraph(text=str(value))) for value in values])

    group += nodes.thead("", line(header))
    group += nodes.tbody("", *map(line, rows))
    return nodes.table("", group)


def ship_mathjax(app: Sphinx, error: Exception | None) -> None:
    """Copy MathJax from its wheel into the site, so that the pages need no network."""
    if error or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "mathjax"
    found = files("sphinx-mathjax-offline") or []
    for path in found:
        inside = str(path).partition("static/mathjax/")[2]
        if inside.startswith(_MATHJAX):
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(path.locate()), target / inside)
    if not (target / _MATHJAX[0]).is_file():
        raise ExtensionError("sphinx-mathjax-offline holds no MathJax; reinstall it with `pip install -e .[book]`")


def ship_files(app: Sphinx, error: Exception | None) -> None:
    """Copy what was fetched into the site; a page asks for it only where it needs it."""
    if error or app.builder.format != "html":
        return
    for file in bundle.FILES:
        try:
            found = bundle.fetch(file, runner.ROOT / "book" / "_build" / "fetched")
        except bundle.BundleError as problem:
            raise ExtensionError(f"the site lacks a file: {problem}") from problem
        shutil.copyfile(found, Path(app.outdir) / "_static" / file.name)


def _offer_launch(app: Sphinx, config: Any) -> None:
    config.html_theme_options.update(repository.launch(repository.address(runner.ROOT)))


def _write_notebooks(app: Sphinx) -> None:
    """Load what turns pages into notebooks, only where published.py asks for them: loading it takes a second."""
    app.setup_extension("sphinx_tojupyter")
    app.config.tojupyter_lang_synonyms = ["ipython3", "ipython", "python"]
    app.config.tojupyter_drop_solutions = False


def setup(app: Sphinx) -> dict[str, Any]:
    """Execute what is stale, now, before Sphinx looks for the pages."""
    try:
        runner.run(os.environ.get("PROFILE", "embedded"))
    except runner.ChapterError as error:
        raise ExtensionError(str(error)) from error
    if os.environ.get("COMPANION_BUILDER") == "jupyter":
        _write_notebooks(app)
    app.connect("config-inited", _offer_launch)
    app.add_directive("provenance", ProvenanceDirective)
    glance.register(app)
    foot.register(app)
    guard.register(app)
    picture.register(app)
    quoted.register(app)
    app.connect("build-finished", ship_mathjax)
    app.connect("build-finished", ship_files)
    # Where this folder changes, every page is read and written again.
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return {"parallel_read_safe": True, "env_version": zlib.crc32(sources)}
