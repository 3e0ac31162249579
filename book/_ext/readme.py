"""Take the README's figure from the executed ALBERT chapter: ``make readme``."""

from __future__ import annotations

import sys

import nbformat
import runner

TARGET = runner.ROOT / "book" / "_static" / "albert-network.svg"
FIGURE = "fig-albert-network"


def figure() -> str:
    """Return the figure's SVG from the executed notebook."""
    notebook = nbformat.read(runner.BUILT / "albert.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("mystnb", {}).get("figure", {}).get("name") == FIGURE:
            svg: str = cell.outputs[0]["data"]["image/svg+xml"]
            return svg
    raise LookupError(f"the executed ALBERT chapter has no figure {FIGURE}")


def main() -> int:
    """Write the figure, whole or not at all."""
    temporary = TARGET.with_suffix(".tmp")
    temporary.write_text(figure(), encoding="utf-8")
    temporary.replace(TARGET)
    print(f"wrote {TARGET.relative_to(runner.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
