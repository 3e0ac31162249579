"""Count baselines over the same tokens: what a model must beat before its inside is worth a look."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from training.corpus import VOCABULARY

__all__ = ["BothSides", "Trigram"]

Ids = NDArray[np.int64]
_DISCOUNT = 0.75


class Trigram:
    r"""Interpolated Kneser-Ney trigrams (Chen and Goodman, 1999), one discount of 0.75.

    Each order takes 0.75 off every count and gives what that frees to the next lower order; lower orders count
    in how many contexts a token was seen, not how often. The lowest is smoothed by half a count each.
    """

    def __init__(self, ids: Ids) -> None:
        a, b, c = ids[:-2], ids[1:-1], ids[2:]
        V = VOCABULARY
        trigrams, counts = np.unique((a * V + b) * V + c, return_counts=True)
        self.trigrams = _Discounted(trigrams // V, trigrams % V, counts)
        # Continuation counts: every different trigram is one occurrence of its last two tokens.
        bigrams, counts = np.unique(trigrams % V**2, return_counts=True)
        self.bigrams = _Discounted(bigrams // V, bigrams % V, counts)
        seen = np.bincount(np.unique(ids[:-1] * V + ids[1:]) % V, minlength=V)
        self.unigrams = (seen + 0.5) / (seen + 0.5).sum()

    def nats(self, ids: Ids) -> NDArray[np.float64]:
        """Return -log p of the tokens from the third on, shape (n - 2,)."""
        a, b, c = ids[:-2], ids[1:-1], ids[2:]
        lower = self.bigrams.interpolate(b, c, self.unigrams[c])
        return -np.log(self.trigrams.interpolate(a * VOCABULARY + b, c, lower))


class _Discounted:
    """One order: the discounted share of a token after a context, and what is left for the lower order."""

    def __init__(self, contexts: Ids, tokens: Ids, counts: Ids) -> None:
        self.pairs = contexts * VOCABULARY + tokens  # sorted, each once
        self.counts = counts
        self.contexts, first = np.unique(contexts, return_index=True)
        self.totals = np.add.reduceat(counts, first)
        self.kinds = np.diff(np.append(first, len(contexts)))

    def interpolate(self, contexts: Ids, tokens: Ids, lower: NDArray[np.float64]) -> NDArray[np.float64]:
        at, known = _find(self.contexts, contexts)
        pair, seen = _find(self.pairs, contexts * VOCABULARY + tokens)
        own = np.where(seen, self.counts[pair] - _DISCOUNT, 0.0)
        return np.where(known, (own + _DISCOUNT * self.kinds[at] * lower) / self.totals[at], lower)


class BothSides:
    r"""A token from its left and its right neighbour, by counts.

    The product of experts :math:`p(x \mid l)\, p(x \mid r) / p(x)`, normalised, is what the counts of triples
    (l, x, r) fall back to, with Witten-Bell weights throughout (Witten and Bell, 1991).
    """

    def __init__(self, ids: Ids) -> None:
        V = VOCABULARY
        self.unigrams = (np.bincount(ids, minlength=V) + 1.0) / (len(ids) + V)
        pairs = sparse.coo_array((np.ones(len(ids) - 1), (ids[:-1], ids[1:])), shape=(V, V)).toarray()
        self.after, self.before = (self._witten_bell(counts) for counts in (pairs, pairs.T))
        around = ids[:-2] * V + ids[2:]
        triples, counts = np.unique(around * V + ids[1:-1], return_counts=True)
        self.triples, self.counts = triples, counts
        self.around, first = np.unique(triples // V, return_index=True)
        self.totals = np.add.reduceat(counts, first)
        self.kinds = np.diff(np.append(first, len(triples)))

    def _witten_bell(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        kinds = np.maximum((counts > 0).sum(1, keepdims=True), 1)
        return (counts + kinds * self.unigrams) / (counts.sum(1, keepdims=True) + kinds)

    def nats(self, ids: Ids) -> NDArray[np.float64]:
        """Return -log p of every token but the first and the last, shape (n - 2,)."""
        left, x, right = ids[:-2], ids[1:-1], ids[2:]
        lower = np.empty(len(x))
        for part in np.array_split(np.arange(len(x)), max(1, len(x) // 1000)):
            product = self.after[left[part]] * self.before[right[part]] / self.unigrams
            lower[part] = product[np.arange(len(part)), x[part]] / product.sum(1)
        at, known = _find(self.around, left * VOCABULARY + right)
        triple, seen = _find(self.triples, (left * VOCABULARY + right) * VOCABULARY + x)
        own = np.where(seen, self.counts[triple], 0)
        mixed = (own + self.kinds[at] * lower) / (self.totals[at] + self.kinds[at])
        return -np.log(np.where(known, mixed, lower))


def _find(table: Ids, keys: Ids) -> tuple[Ids, NDArray[np.bool_]]:
    """Where each key lies in a sorted table, and whether it does."""
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return at, table[at] == keys
