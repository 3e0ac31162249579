"""Words that tell two books apart, by log-odds over the corpus: what the steering chapters steer towards."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from training.corpus import Corpus, TrainingError

__all__ = ["log_odds", "write_words"]

_BOOKS = {"sea": "pg2701.txt", "parlour": "pg1342.txt"}
_KEPT = 80  # words a side
_TIMES = 5  # as frequent as in the other book, at least: leaves out what is only somewhat commoner
_RARE = 20  # in its own book; rarer words come from single scenes


def write_words(corpus: Corpus, path: Path) -> None:
    """Write the words that stand out in Moby Dick and in Pride and Prejudice, names left out.

    Raises
    ------
    TrainingError
        If the corpus lacks one of the two.
    """
    for name in _BOOKS.values():
        if name not in corpus.texts:
            raise TrainingError(f"the corpus has no {name}; the page 'The zoo' lists the seven books")
    texts = {name: re.sub(r"\[Illustration[^\]]*\]", "", text) for name, text in corpus.texts.items()}
    odds = log_odds(texts, *_BOOKS.values())
    share = {book: odds[book] / len(_words(texts[book])) for book in _BOOKS.values()}
    rows = []
    for side, book in _BOOKS.items():
        other = next(name for name in _BOOKS.values() if name != book)
        often = (odds[book] >= _RARE) & (share[book] >= _TIMES * share[other]) & ~odds["name"]
        rows.append(odds[often].sort_values("z", key=abs, ascending=False).head(_KEPT).assign(side=side))
    table = pd.concat(rows)[["side", "word", *_BOOKS.values(), "log_odds", "z"]].round(3)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(table.to_csv(index=False), encoding="utf-8")
    temporary.replace(path)


def log_odds(texts: dict[str, str], first: str, second: str) -> pd.DataFrame:
    r"""Return how much likelier each word is in one text than in another, with the whole corpus as a prior.

    Log-odds ratio with an informative Dirichlet prior (Monroe, Colaresi and Quinn 2008, equations 16 and 22).

    Returns
    -------
    DataFrame
        word, its count in either text, log_odds (positive: first), z (log-odds over its standard deviation), name
        (whether it is not mostly written with a small letter within sentences).
    """
    counts = {name: Counter(_words(text)) for name, text in texts.items()}
    whole = sum(counts.values(), Counter[str]())
    words = sorted(word for word in whole if counts[first][word] + counts[second][word] >= 10)
    prior = np.array([whole[word] for word in words], dtype=float)
    y = {name: np.array([counts[name][word] for word in words], dtype=float) for name in (first, second)}
    logits = {name: np.log((y[name] + prior) / (counts[name].total() + whole.total() - y[name] - prior)) for name in y}
    delta = logits[first] - logits[second]
    z = delta / np.sqrt(sum(1 / (y[name] + prior) for name in y))
    everything = " ".join(texts.values())
    capital = Counter(re.findall(r"(?<=[a-z,;] )[A-Z][a-z]+", everything))
    small = Counter(re.findall(r"(?<=[a-z,;] )[a-z]+", everything))
    found = {"word": words, first: y[first].astype(int), second: y[second].astype(int), "log_odds": delta, "z": z}
    return pd.DataFrame(found).assign(name=[capital[word.capitalize()] >= small[word] for word in words])


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
