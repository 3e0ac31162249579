"""A chapter's figure on another page: ``{picture} notebooks/albert#fig-albert-network``, with a caption of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import runner
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

__all__ = ["find", "register"]


def find(chapter: str, name: str, built: Path = runner.BUILT) -> tuple[str, str]:
    """Return a figure's SVG and its alternative text, from the executed notebook.

    Raises
    ------
    LookupError
        If the chapter has no such figure.
    """
    notebook = nbformat.read(built / f"{chapter}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("mystnb", {}).get("figure", {}).get("name") == name:
            output = next(o for o in cell.outputs if "image/svg+xml" in o.get("data", {}))
            return output["data"]["image/svg+xml"], output["metadata"]["image/svg+xml"]["alt"]
    raise LookupError(f"the executed chapter {chapter} has no figure {name}")


class PictureDirective(SphinxDirective):  # type: ignore[misc]  # docutils is not typed
    """A figure whose picture and alternative text are those of the run."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Put the picture where Sphinx looks for it, and build the figure."""
        chapter, _, name = self.arguments[0].partition("#")
        try:
            svg, alt = find(Path(chapter).name, name)
        except LookupError as error:
            raise self.error(str(error)) from error
        self.env.note_dependency(str(runner.BUILT / f"{Path(chapter).name}.ipynb"))
        path = Path(self.env.srcdir) / "_build" / "pictures" / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(svg, encoding="utf-8")
        caption = nodes.caption()
        self.state.nested_parse(self.content, self.content_offset, caption)
        # What was parsed is a paragraph; a caption holds its words.
        words: list[Any] = caption.children[0].children if caption.children else []
        image = nodes.image(uri=f"/_build/pictures/{name}.svg", alt=alt)
        return [nodes.figure("", image, nodes.caption("", "", *words))]


def register(app: Sphinx) -> None:
    """Offer the directive."""
    app.add_directive("picture", PictureDirective)
