"""The zoo: small networks that differ in one thing at a time, trained by this project and shipped with it."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from companion.errors import ModelNotFoundError

__all__ = ["CONTRASTS", "card", "checksum", "folder", "names", "tokenizer"]

_ROOT = Path(str(files(__package__)))

#: Pairs that differ in one thing by design; the page *Zoo* lists what else differs in each.
CONTRASTS = {
    "sharing": ("albert", "bert"),
    "causality": ("bert", "causal-bert"),
    "place of the norm": ("causal-bert", "gpt2"),
    "locality": ("gpt-neo-global", "gpt-neo"),
}


def names() -> list[str]:
    """Return what :func:`companion.load` knows of the zoo: ``zoo/gpt2`` and so on, in order of their names."""
    return [f"zoo/{name}" for name in _checksums()]


def folder(name: str) -> Path:
    """Return where a model lies, an ordinary Hugging Face folder without its tokenizer.

    Raises
    ------
    ModelNotFoundError
        If the zoo has no such model.
    """
    known = names()
    if name not in known:
        raise ModelNotFoundError(f"the zoo has no {name!r}; it has {', '.join(known)}")
    return _ROOT / name.removeprefix("zoo/")


def tokenizer() -> Path:
    """Return the folder of the tokenizer that all of them share."""
    return _ROOT / "tokenizer"


def checksum(name: str) -> str:
    """Return the SHA-256 on record of a model's weights."""
    return _checksums()[folder(name).name]


def card(name: str) -> dict[str, Any]:
    """Return a model's card: data, sizes, seed, steps, loss curve, held-out figures.

    Raises
    ------
    ModelNotFoundError
        If the zoo has no such model.
    """
    content: dict[str, Any] = json.loads((folder(name) / "card.json").read_text(encoding="utf-8"))
    return content


def _checksums() -> dict[str, str]:
    lines = (_ROOT / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {path.split("/")[0]: digest for digest, path in (line.split() for line in lines)}
