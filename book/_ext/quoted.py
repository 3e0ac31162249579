"""Every number that a sentence of the book can quote, as one file, and its comparison with another run's.

``python book/_ext/quoted.py numbers.csv`` compares the executed chapters here with the file of another run, which every
built site carries.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import runner
from sphinx.application import Sphinx

__all__ = ["collect", "compare", "register"]

_PREFIX = "application/papermill.record/"


def collect(built: Path = runner.BUILT) -> pd.DataFrame:
    """Return what the chapters have glued: chapter, key, value (as text)."""
    rows = []
    for path in sorted(built.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                name = output.get("metadata", {}).get("scrapbook", {}).get("name")
                if name:
                    rows.append({"chapter": path.stem, "key": name, "value": output["data"][f"{_PREFIX}text/plain"]})
    return pd.DataFrame(rows, columns=["chapter", "key", "value"])


def compare(here: pd.DataFrame, there: pd.DataFrame) -> pd.DataFrame:
    """Return one row a key of either run: here, there, and the relative difference.

    The difference is 0 where both are the same text, infinite where only one run has the key or a text that is no
    number changed.
    """
    both = here.merge(there, on=["chapter", "key"], how="outer", suffixes=("_here", "_there"))
    numbers = both[["value_here", "value_there"]].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float)
    size = np.abs(numbers).max(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.abs(numbers[:, 0] - numbers[:, 1]) / size
    same = (both["value_here"] == both["value_there"]).to_numpy()
    both["difference"] = np.where(same, 0.0, np.where(np.isfinite(relative), relative, np.inf))
    return both.sort_values("difference", ascending=False, ignore_index=True)


def _ship(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.format == "html":
        collect().to_csv(Path(app.outdir) / "_static" / "numbers.csv", index=False)


def register(app: Sphinx) -> None:
    """Put the file into the site."""
    app.connect("build-finished", _ship)


def main() -> int:
    """Compare from the command line; 1 where a number differs by more than the tolerance."""
    parser = argparse.ArgumentParser(description="Compare the numbers of the executed chapters with another run's.")
    parser.add_argument("file", type=Path, help="numbers.csv of another run: _static/numbers.csv of its site")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="relative difference to accept (default 1e-3)")
    arguments = parser.parse_args()
    try:
        there = pd.read_csv(arguments.file, dtype=str)
        found = compare(collect(), there[["chapter", "key", "value"]])
    except (OSError, KeyError, ValueError) as problem:
        print(f"error: {arguments.file} is no file of numbers: {problem}", file=sys.stderr)
        return 1
    off: Any = found[found["difference"] > arguments.tolerance]
    same = int((found["difference"] == 0).sum())
    off_by = f"off by more than {arguments.tolerance:g}"
    print(f"{len(found)} numbers, {same} of them equal to the last digit, {len(off)} {off_by}")
    if len(off):
        print(off.to_string(index=False))
    return int(len(off) > 0)


if __name__ == "__main__":
    sys.exit(main())
