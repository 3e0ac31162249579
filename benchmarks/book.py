"""The book: executed and built from nothing, built again unchanged, and how heavy its pages are."""

from __future__ import annotations

import functools
import gzip
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from playwright.sync_api import Request

ROOT = Path(__file__).resolve().parents[1]
_INTERACTIVE = ("notebooks/theory-states", "notebooks/layer-varying")  # these load plotly


def measure(repeats: int) -> list[dict[str, Any]]:
    """Return seconds of both builds (the second: median of ``repeats``), and one row a page with its first load."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "repository"
        _copy(copy)
        whole = _build(copy)
        again = sorted(_build(copy) for _ in range(repeats))[repeats // 2]
        rows: list[dict[str, Any]] = [{"seconds_from_nothing": whole, "seconds_unchanged": again}]
        return rows + weights(copy / "book" / "_build" / "html")


def _copy(target: Path) -> None:
    """Copy what git would know, without anything that was built."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name, follow_symlinks=False)


def _build(root: Path) -> float:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(root)}
    environment.pop("COMPANION_CACHE", None)
    start = time.perf_counter()
    subprocess.run(["jupyter-book", "build", "book/", "-W"], cwd=root, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def weights(site: Path) -> list[dict[str, Any]]:
    """Return what a browser with an empty cache fetches for each page, as it is on disk and as a host compresses it."""
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    from browser import chromium

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rows = []
    with chromium() as browser:
        for path in sorted([*site.glob("*.html"), *site.glob("notebooks/*.html")]):
            name = path.relative_to(site).with_suffix("").as_posix()
            if name in ("index", "genindex", "search", "prf-prf"):
                continue
            context = browser.new_context()
            page = context.new_page()
            asked: set[str] = set()

            def note(request: Request, seen: set[str] = asked) -> None:
                seen.add(urlsplit(request.url).path)

            page.on("request", note)
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/{name}.html", wait_until="networkidle")
            bodies = [(site / unquote(part).lstrip("/")).read_bytes() for part in asked if part.strip("/")]
            rows.append(
                {
                    "page": name,
                    "interactive": name in _INTERACTIVE,
                    "megabytes": sum(map(len, bodies)) / 1e6,
                    "megabytes_compressed": sum(min(len(b), len(gzip.compress(b))) for b in bodies) / 1e6,
                }
            )
            context.close()
    server.shutdown()
    server.server_close()
    return rows
