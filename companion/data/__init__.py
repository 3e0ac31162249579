"""Short texts that the book's chapters are computed from, each with its source in the file."""

from __future__ import annotations

from importlib.resources import files

from companion.errors import TextError

__all__ = ["texts"]

_NAMES = ("english", "heldout", "reactions")


def texts(name: str) -> list[str]:
    """Return a small collection of texts.

    Parameters
    ----------
    name : {"english", "heldout", "reactions"}
        56 paragraphs from seven novels in the public domain (Project Gutenberg), 40 from an eighth that no
        model of the zoo saw in training, or 48 reaction SMILES of textbook reactions.

    Raises
    ------
    TextError
        If there is no such collection.
    """
    if name not in _NAMES:
        raise TextError(f"there are no texts {name!r}; use {', '.join(_NAMES)}")
    lines = (files(__package__) / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[-1] for line in lines if line and not line.startswith("#")]
