"""The last good site stays in place: a build that fails puts back what was there."""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.application import Sphinx

__all__ = ["register"]


def register(app: Sphinx) -> None:
    """Set the site aside before a build, and decide after everything else whether the new one replaces it."""
    app.connect("builder-inited", _set_aside)
    app.connect("build-finished", _decide, priority=1000)


def _aside(app: Sphinx) -> Path:
    return Path(app.outdir).with_name(f"{Path(app.outdir).name}.last")


def _set_aside(app: Sphinx) -> None:
    shutil.rmtree(_aside(app), ignore_errors=True)
    if app.builder.format == "html" and (Path(app.outdir) / "index.html").is_file():
        # A copy and not links: Sphinx writes into files that are there.
        shutil.copytree(app.outdir, _aside(app))


def _decide(app: Sphinx, error: Exception | None) -> None:
    strict = app.warningiserror or app.keep_going  # -W, by itself or with --keep-going
    failed = error is not None or (strict and app._warncount)
    if failed and _aside(app).is_dir():
        shutil.rmtree(app.outdir)
        _aside(app).rename(app.outdir)
    else:
        shutil.rmtree(_aside(app), ignore_errors=True)
