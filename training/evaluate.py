"""Losses on a book that no model saw, beside count baselines over the same tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import companion
from training import cards
from training.corpus import MASK, Corpus, TrainingError, plain
from training.counts import BothSides, Trigram
from training.recipes import MASKED_KINDS

__all__ = ["evaluate", "excerpt_nats", "masked_token_nats", "next_token_nats"]

_BLOCK = 1024  # neighbouring tokens, resampled together
_RESAMPLES = 2000
_EVERY = 8  # one token in eight is masked, in eight passes
_WINDOWS = 64  # in one forward pass


def evaluate(corpus: Corpus, book: Path, names: list[str]) -> None:
    """Measure models of the zoo and the count baselines on a held-out book; write the figures into the cards.

    Raises
    ------
    TrainingError
        If the book cannot be read, or is one of the corpus.
    """
    try:
        content = book.read_bytes()
        text = plain(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"{book} cannot be read as UTF-8 text: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest in corpus.sha256.values():
        raise TrainingError(f"{book} is one of the training texts; give a book that no model saw")
    tokenizer = companion.load(names[0]).tokenizer
    tokens = corpus.tokens(tokenizer)
    ids = np.asarray(tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)
    if len(ids) < 2 * _BLOCK:
        raise TrainingError(
            f"{book} has {len(ids)} tokens; give at least {2 * _BLOCK}, so that an interval makes sense"
        )
    lengths = np.diff([end for _, end in tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]])
    baselines = {"Kneser-Ney trigram": Trigram(tokens).nats(ids), "two-sided count model": BothSides(tokens).nats(ids)}
    for name in names:
        model = companion.load(name)
        masked = _is_masked(name)
        nats = _nats(model, ids)
        baseline = list(baselines)[masked]
        # Bits per byte are a code's length, which only the causal models give.
        weight = np.ones(len(nats)) if masked else lengths[1:] * np.log(2)
        value, low, high = _ratio(nats, weight)
        difference, difference_low, difference_high = _ratio(nats - baselines[baseline], weight)
        figures = {
            "text": book.name,
            "sha256": digest,
            "unit": "nats a masked token" if masked else "bits per byte",
            "value": value,
            "low": low,
            "high": high,
            "baseline": baseline,
            "baseline_value": _ratio(baselines[baseline], weight)[0],
            "difference": difference,
            "difference_low": difference_low,
            "difference_high": difference_high,
            "tokens": len(nats),
            "excerpt_nats": excerpt_nats(model),
        }
        cards.write(companion.zoo.folder(name), name, {**companion.zoo.card(name), "held_out": figures})
        print(f"{name}: {value:.3f} {figures['unit']}, {difference:+.3f} against the {baseline}", flush=True)


def excerpt_nats(model: companion.Model) -> float:
    """Return the mean loss on the held-out passages that the package carries, which the tests compute again."""
    text = "\n".join(companion.data.texts("heldout"))
    ids = np.asarray(model.tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)
    return round(float(_nats(model, ids).mean()), 4)


def _is_masked(name: str) -> bool:
    return companion.zoo.card(name)["kind"] in MASKED_KINDS


def _nats(model: companion.Model, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    measure = masked_token_nats if _is_masked(model.name) else next_token_nats
    return measure(model.network, ids)


def _ratio(nats: NDArray[np.float64], weight: NDArray[np.float64]) -> tuple[float, float, float]:
    """Sum over sum, with a 95 % interval from resampled blocks of neighbouring tokens."""
    starts = np.arange(0, len(nats), _BLOCK)
    top, bottom = np.add.reduceat(nats, starts), np.add.reduceat(weight, starts)
    draws = np.random.default_rng(0).integers(0, len(starts), size=(_RESAMPLES, len(starts)))
    low, high = np.quantile(top[draws].sum(1) / bottom[draws].sum(1), [0.025, 0.975])
    return round(float(top.sum() / bottom.sum()), 4), round(float(low), 4), round(float(high), 4)


@torch.no_grad()
def next_token_nats(network: Any, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return -log p of every token from the third on, shape (n - 2,), given at least half a window before it."""
    return _scored(network, ids, causal=True)[2:]


@torch.no_grad()
def masked_token_nats(network: Any, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return -log p of every token but first and last, shape (n - 2,), each masked once, never with its neighbours."""
    total = np.zeros(len(ids))
    for shift in range(_EVERY):
        hidden = np.arange(len(ids)) % _EVERY == shift
        inputs = np.where(hidden, MASK, ids)
        total[hidden] = _scored(network, ids, causal=False, inputs=inputs)[hidden]
    return total[1:-1]


def _scored(
    network: Any,
    ids: NDArray[np.int64],
    causal: bool,
    inputs: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Losses of all tokens from overlapping windows: each token is scored where it has the most context."""
    length = min(network.config.max_position_embeddings, len(ids))
    starts = np.append(np.arange(0, len(ids) - length, length // 2), len(ids) - length)
    where = starts[:, None] + np.arange(length)
    rows, targets = (torch.from_numpy(a[where]) for a in (ids if inputs is None else inputs, ids))
    losses = np.full(len(ids), np.nan)
    room = np.full(len(ids), -1)  # how much context the score so far had
    for part in torch.arange(len(starts)).split(_WINDOWS):
        logits = network(input_ids=rows[part].to(network.device)).logits.float().log_softmax(-1).cpu()
        if causal:
            nats = -logits[:, :-1].gather(-1, targets[part, 1:, None])[..., 0]
            nats = torch.nn.functional.pad(nats, (1, 0), value=float("nan"))
        else:
            nats = -logits.gather(-1, targets[part, :, None])[..., 0]
        for row, index in zip(nats.double().numpy(), part.tolist(), strict=True):
            place = np.arange(length)
            context = place if causal else np.minimum(place, length - 1 - place)
            better = (context > room[where[index]]) & ~np.isnan(row)
            losses[where[index][better]] = row[better]
            room[where[index][better]] = context[better]
    return losses
