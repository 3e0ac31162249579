"""Follow the alignment of every token through the real network, keeping no hidden state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from companion import hooks
from companion.errors import CompanionError
from companion.reducer import Reducer, Window
from companion.spectrum import Order

__all__ = ["Target", "trace"]

Target = Literal["own", "random", "other"]
_TARGETS = ("own", "random", "other")


def trace(
    model: Any,
    texts: Iterable[str],
    order: Order = "residual",
    by: Literal["text", "token"] = "text",
    targets: Target | Sequence[Target] | None = None,
    batch_size: int = 8,
    seed: int = 0,
    progress: bool = False,
    matrices: Sequence[Tensor] | None = None,
    draws: int = 16,
) -> pd.DataFrame:
    r"""Follow the alignment of every token through the real network.

    Every reading is reduced inside its hook: no hidden state is kept. Tokens are those of the tokenizer
    with its special tokens; a text longer than the model's positions is cut into windows.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        Read lazily.
    order : {"residual", "modulus", "real"}
        Which eigenvalue is principal, see :func:`companion.spectrum`.
    by : {"text", "token"}
        One row for each text, or for each token.
    targets : {"own", "random", "other"} or several of these
        Subspaces that tokens are measured against: the layer's own principal eigenspace; random ones of
        the same dimension (``random-0`` ...); those of the other layers (``layer-0`` ..., layers with the
        same weights left out). All three by default, for ``by="token"`` only ``"own"``.
    batch_size : int
        Windows in one forward pass; it changes speed, not results.
    seed : int
        Of the random subspaces.
    progress : bool
        Whether to show a bar that counts texts.
    matrices : sequence of Tensor, shape (d_model, d_model), or None
        One matrix a layer whose principal eigenspace is the layer's own; the layer matrices by default. Others
        are :func:`companion.norm_scaled`'s.
    draws : int
        Number of random subspaces.

    Returns
    -------
    DataFrame
        By text: model, layer, stage, target, text, n (tokens), gamma (sum over tokens), risen (tokens with
        gamma above their gamma at stage ``in``). By token: model, layer, stage, target, text, position,
        token, gamma. Stages are ``in``, ``input_norm``, ``attention``, ``norm``, ``ffn`` and ``out``, as far as
        the network has them (see :mod:`companion.hooks`).

    Raises
    ------
    TextError
        If there is no text, or one is empty.
    SpectrumError
        If a layer's principal eigenspace is not determined.
    """
    if by not in ("text", "token"):
        raise CompanionError(f"by={by!r} is unknown; use 'text' or 'token'")
    chosen = _chosen(targets, by)
    if batch_size < 1:
        raise CompanionError(f"batch_size={batch_size} must be at least 1")
    if draws < 1:
        raise CompanionError(f"draws={draws} must be at least 1")
    if matrices is not None and len(matrices) != len(model.layers):
        raise CompanionError(f"{len(matrices)} matrices do not fit {len(model.layers)} layers; give one a layer")
    reducer = Reducer(model, order, chosen, seed, by == "token", matrices, draws)
    if progress and not isinstance(texts, str):
        texts = tqdm(texts, desc=f"trace {model.name}", unit=" texts")
    base = model.network.base_model
    with torch.no_grad(), hooks.watch(base, model.sites, reducer.stages, reducer.see):
        windows = (Window(text, ids, place) for place, (text, ids) in enumerate(model.encoded(texts)))
        for batch in _batches(windows, batch_size):
            ids, mask = _pad(batch, model.device)
            reducer.start(batch, mask)
            base(input_ids=ids, attention_mask=None if mask is None else mask.long())
            reducer.finish()
    return reducer.token_table() if by == "token" else reducer.text_table()


def _chosen(targets: Target | Sequence[Target] | None, by: str) -> tuple[str, ...]:
    if targets is None:
        return _TARGETS if by == "text" else ("own",)
    chosen = (targets,) if isinstance(targets, str) else tuple(targets)
    unknown = [target for target in chosen if target not in _TARGETS]
    if unknown or not chosen:
        raise CompanionError(f"targets={targets!r} is unknown; use some of {', '.join(_TARGETS)}")
    return tuple(target for target in _TARGETS if target in chosen)


def _batches(windows: Iterator[Window], size: int) -> Iterator[list[Window]]:
    """Batches of similar length, from a look-ahead of 32 batches: little padding, flat memory."""
    while ahead := list(islice(windows, 32 * size)):
        ahead.sort(key=lambda window: len(window.ids))
        for i in range(0, len(ahead), size):
            yield ahead[i : i + size]


def _pad(batch: list[Window], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Token ids and where they are, None for everywhere."""
    lengths = [len(window.ids) for window in batch]
    longest = max(lengths)
    padded = torch.tensor([window.ids + [0] * (longest - len(window.ids)) for window in batch], device=device)
    if min(lengths) == longest:
        return padded, None
    return padded, torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
