"""Where the repository lives: taken from the environment or from git, never typed in."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["BRANCH", "address", "commit", "launch"]

BRANCH = "notebooks"  # published by the workflow: what Colab and Binder open
_REMOTE = re.compile(r"(?:https?://(?:[^@/]+@)?|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?")


def address(root: Path) -> str | None:
    """Return the repository's address: ``COMPANION_REPOSITORY``, what GitHub's runner says, or the git remote.

    None where none of them names a repository that a stranger could fetch.
    """
    if given := os.environ.get("COMPANION_REPOSITORY"):
        return given.removesuffix("/")
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    found = _REMOTE.fullmatch(_git(root, "remote", "get-url", "origin"))
    return f"https://{found[1]}/{found[2]}" if found else None


def commit(root: Path) -> str:
    """Return the commit that is checked out, "" outside git."""
    return _git(root, "rev-parse", "HEAD")


def launch(where: str | None) -> dict[str, Any]:
    """Return the theme's options for launch buttons: Colab and Binder for GitHub, none without an address."""
    if where is None or not where.startswith("https://github.com/"):
        return {}
    return {
        "repository_url": where,
        "repository_branch": BRANCH,
        "launch_buttons": {
            "notebook_interface": "jupyterlab",
            "colab_url": "https://colab.research.google.com",
            "binderhub_url": "https://mybinder.org",
        },
    }


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()
