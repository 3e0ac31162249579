"""A headless Chromium, for tests and for pictures of the book: found, or fetched where that needs nobody's leave."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

_QUIET = ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@cache
def executable() -> str | None:
    """Return the browser's path, or None where Playwright has its own.

    ``CHROMIUM=path`` overrides. As root on Debian or Ubuntu the system's package is installed, elsewhere
    Playwright fetches its own.
    """
    if path := os.environ.get("CHROMIUM"):
        if not Path(path).is_file():
            raise RuntimeError(f"CHROMIUM={path} is no file; give the path of a Chromium")
        return path
    names = ("chromium", "chromium-browser", "google-chrome")
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    problem = ""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
            problem += subprocess.run(command, capture_output=True, text=True).stderr
        if found := shutil.which("chromium"):
            return found
    done = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            "no Chromium: install one (on Debian: apt-get install chromium) or set CHROMIUM=path; "
            f"tried and failed: {(problem + done.stdout + done.stderr)[-500:]}"
        )
    return None


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser, and close it."""
    with sync_playwright() as playwright:
        arguments = [*_QUIET, "--enable-unsafe-swiftshader", "--allow-file-access-from-files"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()
