"""What every page gets besides its text: a foot with its provenance, its language, and what the keyboard needs."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import nbformat
import runner
from sphinx.application import Sphinx

from companion import zoo
from companion.sources import WHEELS

__all__ = ["register", "weights"]

_SHOWN = ("python", "torch", "transformers", "numpy", "scipy")
_FIGURE = re.compile(r'<figure[^>]*id="(?P<name>fig-[\w-]+)".*?src="(?P<picture>[^"]+)".*?</figcaption>', re.DOTALL)
# A link that is a formula, to the notation: screen readers are told where it leads, since they see no text in it.
_SYMBOL = re.compile(r'(<a class="reference internal" href="[^"]*#sym-([\w-]+)")(>(?:<span[^>]*>)?<span class="math)')
_NAME = re.compile(r"[\"'](zoo/[a-z0-9@-]+|" + "|".join(WHEELS) + r")[\"']")


def register(app: Sphinx) -> None:
    """Add the foot to every executed page, a page's own language to its HTML, and mend what the theme leaves."""
    app.connect("builder-inited", _without_thebe)
    app.connect("html-page-context", _add, priority=900)  # after the theme
    app.connect("build-finished", _write_tables)


def weights(source: str) -> dict[str, str]:
    """Return the models that a chapter's code names, with the SHA-256 of their weights."""
    known = set(zoo.names())
    found = {}
    for name in sorted(set(_NAME.findall(source))):
        if name in WHEELS:
            found[name] = WHEELS[name].sha256
        elif name in known:
            found[name] = zoo.checksum(name)
    return found


def _without_thebe(app: Sphinx) -> None:
    """Take sphinx-thebe off, which the theme brings: it would load scripts from another host, and breaks on itself."""
    for listeners in app.events.listeners.values():
        listeners[:] = [one for one in listeners if not one.handler.__module__.startswith("sphinx_thebe")]


def _add(app: Sphinx, pagename: str, _template: str, context: dict[str, Any], doctree: Any) -> None:
    language = (context.get("meta") or {}).get("lang")
    if language:
        context["language"] = language
        context["html5_lang"] = language
    if "body" in context:
        # Wide tables scroll in their own box, which the keyboard must reach; a list may hold only entries.
        body = re.sub(r"<table(?![^>]*tabindex)", '<table tabindex="0"', context["body"])
        body = _SYMBOL.sub(r'\1 aria-label="\2, in the notation"\3', body)
        context["body"] = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            # What is published is the page as a notebook, whatever its source is.
            if str(button.get("url", "")).startswith("https:"):
                button["url"] = re.sub(r"\.md$", ".ipynb", button["url"])
    context["css_files"] = [file for file in context["css_files"] if "sphinx-thebe" not in str(file.filename)]
    path = runner.BUILT / f"{Path(pagename).name}.ipynb"
    if doctree is None or not pagename.startswith("notebooks/") or not path.is_file():
        return
    notebook = nbformat.read(path, as_version=4)
    tables = notebook.metadata["companion"]["tables"]
    context["body"] = _FIGURE.sub(lambda found: _with_downloads(found, path.stem, tables), context["body"])
    context["body"] += _foot(notebook)


def _with_downloads(found: re.Match[str], chapter: str, tables: dict[str, str]) -> str:
    """Put links to the picture and to its data under a figure's caption."""
    whole, name, picture = found.group(0), found.group("name"), found.group("picture")
    if name not in tables:
        return whole
    links = (
        f'<p class="downloads"><a href="{picture}" download="{name}.svg">Picture (SVG)</a> '
        f'<a href="../_static/data/{chapter}-{name}.csv" download="{name}.csv">Data (CSV)</a></p>'
    )
    return whole.replace("</figcaption>", f"{links}</figcaption>")


def _write_tables(app: Sphinx, error: Exception | None) -> None:
    """Write the data of every figure beside the pages."""
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / "_static" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for row in runner.provenance():
        for name, content in row["tables"].items():
            (folder / f"{row['chapter']}-{name}.csv").write_text(content, encoding="utf-8")


def _foot(notebook: Any) -> str:
    record = notebook.metadata["companion"]
    source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    seeds = sorted({int(seed) for seed in re.findall(r"^seed = (\d+)", source, re.MULTILINE)})
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in _SHOWN if name in record["versions"])
    rows = {
        "executed": f"{record['time']}, in {record['seconds']:.0f} s, at commit {record['commit']}",
        "profile": record["profile"],
        "seed": ", ".join(map(str, seeds)),
        "hardware": record["hardware"],
        "versions": versions,
        "weights (SHA-256)": ", ".join(f"{name} {digest[:12]}" for name, digest in weights(source).items()),
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in rows.items() if value)
    return f'<section class="provenance" aria-label="How this page was made"><dl>{cells}</dl></section>'
