"""Where computed results are kept on disk, and where results that came from elsewhere lie."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["folder", "imported", "write"]


def folder(kind: str) -> Path:
    """Return the folder for one kind of result: under ``COMPANION_CACHE``, or ``companion`` in the user's cache."""
    if root := os.environ.get("COMPANION_CACHE"):
        return Path(root) / kind
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "companion" / kind


def imported() -> list[Path]:
    """Return the studies in ``COMPANION_RESULTS``, which somebody computed elsewhere; none where that is not set."""
    root = os.environ.get("COMPANION_RESULTS")
    return sorted(Path(root).glob("*.json")) if root else []


def write(path: Path, text: str) -> None:
    """Write a result whole or not at all; processes may write the same one at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as stream:
        stream.write(text)
    Path(stream.name).replace(path)
