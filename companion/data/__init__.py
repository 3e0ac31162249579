"""Short texts and lists of words that the book's chapters are computed from, each with its source."""

from __future__ import annotations

from importlib.resources import files

import pandas as pd

from companion.errors import TextError

__all__ = ["texts", "words"]

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


def words(side: str) -> list[str]:
    """Return words that are typical of one book, the most telling first.

    Parameters
    ----------
    side : {"sea", "parlour"}
        Eighty words that stand out in Moby Dick, or in Pride and Prejudice, against the other: at least five times as
        frequent, twenty times at least, no names; by log-odds over the zoo's corpus (``python -m training words``).

    Raises
    ------
    TextError
        If there is no such list.
    """
    table = pd.read_csv(str(files(__package__) / "words.csv"))
    found: list[str] = table.loc[table["side"] == side, "word"].tolist()
    if not found:
        raise TextError(f"there are no words {side!r}; use {', '.join(table['side'].unique())}")
    return found
