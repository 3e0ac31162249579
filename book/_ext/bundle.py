"""The part of plotly.js that interactive figures need: one file, fetched once, checked, kept beside the build."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from pathlib import Path

NAME = "plotly-gl3d.min.js"
_VERSION = "4.1.1"
_ADDRESS = f"https://registry.npmjs.org/plotly.js-gl3d-dist-min/-/plotly.js-gl3d-dist-min-{_VERSION}.tgz"
_SHA256 = "aab04dcd9c103a92b18723f8c837712fe820f325d0bcd2421e415e8124a75b9f"


class BundleError(Exception):
    """The bundle cannot be had, or is not the one on record."""


def fetch(folder: Path) -> Path:
    """Return the bundle's path in ``folder``, fetching it where it is not there yet.

    No package on PyPI carries a part of plotly.js (the whole is near 5 MB), so it comes from the npm registry.

    Raises
    ------
    BundleError
        If the registry does not answer or gives another file.
    """
    path = folder / NAME
    if path.is_file() and _digest(path.read_bytes()) == _SHA256:
        return path
    try:
        with urllib.request.urlopen(_ADDRESS, timeout=60) as answer:
            packed = answer.read()
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            member = archive.extractfile(f"package/{NAME}")
            content = member.read() if member else b""
    except (OSError, tarfile.TarError, KeyError) as error:
        raise BundleError(
            f"{_ADDRESS} cannot be fetched: {error}; go online once, or put {NAME} into {folder}"
        ) from error
    if _digest(content) != _SHA256:
        raise BundleError(f"{_ADDRESS} gave {NAME} with SHA-256 {_digest(content)} instead of {_SHA256}")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
