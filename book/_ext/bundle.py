"""Files that the site carries and that no package on PyPI has: fetched once from npm, checked, kept by the build."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILES", "PLOTLY", "BundleError", "File", "fetch"]


@dataclass(frozen=True)
class File:
    """One file of a package on the npm registry.

    Attributes
    ----------
    name : str
        What it is called in the site's ``_static`` folder.
    address : str
        The package, a gzipped tar archive.
    member : str
        Its path in the archive.
    sha256 : str
        Of the file.
    """

    name: str
    address: str
    member: str
    sha256: str


_NPM = "https://registry.npmjs.org"
_NOTO = f"{_NPM}/@fontsource/noto-sans-devanagari/-/noto-sans-devanagari-5.3.0.tgz"

# The part of plotly.js that the interactive sphere needs (the whole is near 5 MB).
PLOTLY = File(
    "plotly-gl3d.min.js",
    f"{_NPM}/plotly.js-gl3d-dist-min/-/plotly.js-gl3d-dist-min-4.1.1.tgz",
    "package/plotly-gl3d.min.js",
    "aab04dcd9c103a92b18723f8c837712fe820f325d0bcd2421e415e8124a75b9f",
)
FILES = (
    PLOTLY,
    # Noto Sans Devanagari (SIL Open Font License), for the page in Hindi.
    File(
        "noto-devanagari-400.woff2",
        _NOTO,
        "package/files/noto-sans-devanagari-devanagari-400-normal.woff2",
        "f86f14cbd1004f5795689ee9cc70d5d87d915f5135b30283525c1c7b8f0eb192",
    ),
    File(
        "noto-devanagari-700.woff2",
        _NOTO,
        "package/files/noto-sans-devanagari-devanagari-700-normal.woff2",
        "6a68069c959d7f3c02f4062dd9be85327448b5d753e95455b1c0320f37f68fc1",
    ),
)


class BundleError(Exception):
    """A file cannot be had, or is not the one on record."""


def fetch(file: File, folder: Path) -> Path:
    """Return the file's path in ``folder``, fetching it where it is not there yet.

    Raises
    ------
    BundleError
        If the registry does not answer or gives another file.
    """
    path = folder / file.name
    if path.is_file() and _digest(path.read_bytes()) == file.sha256:
        return path
    try:
        with urllib.request.urlopen(file.address, timeout=60) as answer:
            packed = answer.read()
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            member = archive.extractfile(file.member)
            content = member.read() if member else b""
    except (OSError, tarfile.TarError, KeyError) as error:
        raise BundleError(
            f"{file.address} cannot be fetched: {error}; go online once, or put {file.name} into {folder}"
        ) from error
    if _digest(content) != file.sha256:
        raise BundleError(f"{file.address} gave {file.name} with SHA-256 {_digest(content)} instead of {file.sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
