"""What steering costs a causal model: divergence, perplexity, words gained, and the text that it writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import brentq
from torch import Tensor

from companion.errors import SteeringError, TextError

__all__ = ["Edited", "continuations", "price", "strength_at", "text_measures"]

_RANGE = (float(np.log(1e-6)), float(np.log(1e6)))
Edited = Callable[[], AbstractContextManager[None]]


@torch.no_grad()
def price(model: Any, texts: Iterable[str], edits: Mapping[str, Edited], ids: Sequence[int] = ()) -> pd.DataFrame:
    r"""Compare next-token distributions under edits with the unsteered ones, on given texts.

    Parameters
    ----------
    model : Model
        A causal network with an output head.
    texts : iterable of str
        Read lazily; the unsteered network runs once on each.
    edits : mapping from str to callable
        Name -> what opens the edit, for example ``lambda: companion.steered(model, d, 10.0)``.
    ids : sequence of int
        Tokens whose probability is wanted, see :func:`companion.word_tokens`.

    Returns
    -------
    DataFrame
        One row a text and edit: text, edit, tokens, kl (:math:`KL(q \| p)` in nats, mean over positions, of the
        edited ``q`` from the unsteered ``p``), nats and nats_before (cross-entropy of the text's own next token),
        share and share_before (mean probability of ``ids``), spread (how far the edited distribution still depends
        on the position, see notes).

    Raises
    ------
    SteeringError
        If the network is not causal, or has no output head.
    TextError
        If there is no text, or one has fewer than two tokens.

    Notes
    -----
    *spread* is the mean divergence of the positions' distributions from their mean over the text, in nats (the
    information that the next token's distribution carries about the position). Zero means: whatever was read, the
    next word is drawn alike.
    """
    _check_causal(model)
    rows: dict[tuple[int, str], list[dict[str, float]]] = {}
    chosen = torch.tensor(list(ids), dtype=torch.long, device=model.device)
    for text, tokens in _windows(model, texts):
        before = _log_probabilities(model, tokens)
        for name, edit in edits.items():
            with edit():
                after = _log_probabilities(model, tokens)
            rows.setdefault((text, name), []).append(_compared(before, after, tokens[0, 1:], chosen))
    return pd.DataFrame(
        [
            {"text": text, "edit": name}
            | {key: _weighted(windows, key) for key in windows[0] if key != "tokens"}
            | {"tokens": sum(window["tokens"] for window in windows)}
            for (text, name), windows in rows.items()
        ]
    )


def strength_at(
    model: Any, texts: Sequence[str], edit: Callable[[float], AbstractContextManager[None]], kl: float
) -> float:
    """Return a strength whose divergence from the unsteered model, mean over texts, is ``kl`` nats.

    Parameters
    ----------
    model : Model
        A causal network with an output head.
    texts : sequence of str
        Calibration texts.
    edit : callable
        From a strength to what opens the edit.
    kl : float
        Nats a token.

    Raises
    ------
    SteeringError
        If no strength from 1e-6 to 1e6 gets there: behind a norm an edit moves a network only so far.
    TextError
        If there is no text, or one has fewer than two tokens.
    """
    _check_causal(model)
    windows = list(_windows(model, texts))
    with torch.no_grad():
        before = [_log_probabilities(model, ids) for _, ids in windows]

    @torch.no_grad()
    def excess(log_strength: float) -> float:
        rows: dict[int, list[dict[str, float]]] = {}
        with edit(float(np.exp(log_strength))):
            for (text, ids), p in zip(windows, before, strict=True):
                moved = float(_divergence(_log_probabilities(model, ids), p))
                rows.setdefault(text, []).append({"kl": moved, "tokens": float(len(p))})
        moved = float(np.mean([_weighted(parts, "kl") for parts in rows.values()]))
        return float(np.log(max(moved, 1e-12) / kl))

    # Small changes cost their square, so the logarithms stand on a line of slope two.
    here = 0.0
    found = excess(here)
    for _ in range(30):
        there = float(np.clip(here - 1.1 * found / 2 - 0.01 * np.sign(found), *_RANGE))
        behind = excess(there)
        if found * behind <= 0:
            return float(np.exp(brentq(excess, min(here, there), max(here, there), xtol=1e-3)))
        if there == here:
            break
        here, found = there, behind
    raise SteeringError(f"no strength from 1e-6 to 1e6 moves {model.name} by {kl} nats a token")


@torch.no_grad()
def continuations(model: Any, prompts: Sequence[str], tokens: int = 60, seed: int = 0) -> list[str]:
    """Return what the network writes after each prompt, drawn from its own distribution (temperature 1).

    Parameters
    ----------
    model : Model
        A causal network with an output head; call this inside an edit to see what that does.
    prompts : sequence of str
        One continuation each, in one batch.
    tokens : int
        Length of a continuation.
    seed : int
        Of the draws; the torch generator is left as it was.

    Raises
    ------
    SteeringError
        If the network is not causal, or has no output head.
    TextError
        If a prompt is empty.
    """
    _check_causal(model)
    windows = [model.ids(prompt)[0].tolist() for prompt in prompts]
    width = max(map(len, windows))
    padding = model.tokenizer.pad_token_id or 0
    ids = torch.tensor([[padding] * (width - len(window)) + window for window in windows], device=model.device)
    seen = torch.tensor([[0] * (width - len(window)) + [1] * len(window) for window in windows], device=model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        written = model.network.generate(
            ids,
            attention_mask=seen,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=True,
            top_k=0,
            pad_token_id=padding,
        )
    return [model.tokenizer.decode(row[width:], skip_special_tokens=True) for row in written]


def text_measures(text: str, words: Iterable[str] = ()) -> dict[str, float]:
    """Return simple measures of a text, each between 0 and 1.

    Returns
    -------
    dict
        target (share of its words that are among ``words``), diversity (different pairs of neighbouring words, over
        all pairs), repetition (share of words that repeat one of the four before them).
    """
    found = re.findall(r"[a-z']+", text.lower())
    wanted = set(words)
    pairs = Counter(pairwise(found))
    repeated = sum(word in found[max(0, i - 4) : i] for i, word in enumerate(found))
    count = max(len(found), 1)
    return {
        "target": sum(word in wanted for word in found) / count,
        "diversity": len(pairs) / max(pairs.total(), 1),
        "repetition": repeated / count,
    }


def _check_causal(model: Any) -> None:
    if any(layer.mask == "full" for layer in model.layers):
        raise SteeringError(f"{model.name} is not causal: it has no next-token distribution")
    if model.network.get_output_embeddings() is None:
        raise SteeringError(f"{model.name} has no output head: load a checkpoint with its language-model head")


def _windows(model: Any, texts: Iterable[str]) -> Iterator[tuple[int, Tensor]]:
    """Each text's windows with its number, as token ids of shape (1, n)."""
    for text, window in model.encoded(texts):
        if len(window) < 2:
            raise TextError(f"text {text} has fewer than two tokens, so there is nothing to predict")
        yield text, torch.tensor([window], device=model.device)


def _log_probabilities(model: Any, tokens: Tensor) -> Tensor:
    """Log-probabilities of the next token at all positions but the last, shape (n - 1, vocabulary)."""
    logits: Tensor = model.network(input_ids=tokens).logits[0, :-1]
    return logits.double().log_softmax(-1)


def _compared(before: Tensor, after: Tensor, following: Tensor, chosen: Tensor) -> dict[str, float]:
    q = after.exp()
    mixed = q.mean(0).clamp_min(1e-300).log()
    return {
        "tokens": float(len(following)),
        "kl": float(_divergence(after, before)),
        "nats": float(-after.gather(1, following[:, None]).mean()),
        "nats_before": float(-before.gather(1, following[:, None]).mean()),
        "share": float(q[:, chosen].sum(-1).mean()),
        "share_before": float(before.exp()[:, chosen].sum(-1).mean()),
        "spread": float((q * (after.clamp_min(-690) - mixed)).sum(-1).mean()),
    }


def _divergence(q: Tensor, p: Tensor) -> Tensor:
    """KL(q || p) in nats, mean over positions, of log-probabilities (positions, vocabulary)."""
    return (q.exp() * (q - p)).sum(-1).mean()


def _weighted(windows: list[dict[str, float]], key: str) -> float:
    total = sum(window["tokens"] for window in windows)
    return sum(window[key] * window["tokens"] for window in windows) / total
