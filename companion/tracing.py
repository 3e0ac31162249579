"""Follow the alignment of every token through the real network, keeping no hidden state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from companion import hooks
from companion.errors import CompanionError
from companion.layers import AttentionLayer, layer_matrix
from companion.spectrum import Order, random_subspaces, spectrum

__all__ = ["Reducer", "Target", "Window", "trace"]

Target = Literal["own", "random", "other"]
_TARGETS = ("own", "random", "other")
# So many vectors at most are few.
_FEW = 8
_STAGES = ("in", "input_norm", "attention", "norm", "ffn", "out")


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
            base(input_ids=ids, attention_mask=None if bool(mask.all()) else mask.long())
            reducer.finish()
    return reducer.token_table() if by == "token" else reducer.text_table()


class Window(NamedTuple):
    """One window of one text.

    Attributes
    ----------
    text : int
        Number of the text.
    ids : list of int
        Its token ids.
    place : int
        Number of the window among all, in reading order.
    """

    text: int
    ids: list[int]
    place: int


class Reducer:
    """Turn readings into sums as they come: what :func:`trace` puts behind its hooks.

    ``start`` a batch, let the hooks call ``see``, ``finish`` the batch; at the end take a table.
    """

    def __init__(
        self,
        model: Any,
        order: Order,
        chosen: Sequence[str],
        seed: int,
        tokens: bool,
        matrices: Sequence[Tensor] | None = None,
        draws: int = 16,
    ) -> None:
        self.model = model
        self.stages = [stage for stage in _STAGES if stage in model.sites[0].stages]
        # Half precision is too coarse to sum in; wider readings are used as they are.
        dtype = torch.promote_types(model.network.dtype, torch.float32)
        self.names, stacked = _subspaces(
            model.layers if matrices is None else matrices, order, chosen, seed, draws, model.device, dtype
        )
        self.rows = stacked.shape[1]
        self.bases = list(stacked)
        self.bases_and_next = [stacked[layer : layer + 2].flatten(0, 1) for layer in range(len(stacked))]
        self.by_token = tokens
        self.lengths: dict[int, int] = {}
        self.sums: dict[int, NDArray[np.float64]] = {}
        self.windows: dict[int, list[tuple[int, list[int], NDArray[np.float32]]]] = {}

    def start(self, batch: list[Window], mask: Tensor) -> None:
        """Take note of the windows in a batch and of which positions hold tokens."""
        self.batch, self.mask = batch, None if bool(mask.all()) else mask
        self.readings: dict[tuple[int, int], tuple[Tensor, int, Tensor]] = {}
        self.places: list[tuple[int, int]] = []
        self.reduced: list[NDArray[np.float64]] = []
        self.ahead: tuple[Tensor, int | None, tuple[Tensor, int, Tensor]] | None = None

    def see(self, layer: int, stage: str, x: Tensor) -> None:
        """Reduce one reading to its inner products with the bases, and its tokens' lengths.

        Between the network's large products every operation starts with cold caches and costs some ten times as
        much as in a loop. So there are few of them here, and what can wait does.
        """
        at = self.stages.index(stage)
        # What leaves a layer enters the next: both are measured at once.
        if at == 0 and self.ahead is not None:
            seen, version, reading = self.ahead
            self.ahead = None
            if seen is x and version is not None and version == _version(x):
                self.readings[layer, at] = reading
                return
        bases = self.bases[layer] if stage != "out" else self.bases_and_next[layer]
        wide = x if x.dtype == bases.dtype else x.to(bases.dtype)
        length = torch.linalg.vector_norm(wide, dim=-1)
        products = _products(bases, wide.flatten(0, 1))
        self.readings[layer, at] = products, 0, length
        if stage == "out":
            if layer + 1 < len(self.bases):
                self.ahead = x, _version(x), (products, self.rows, length)
            if self.rows > _FEW:
                self._reduce()

    def _reduce(self) -> None:
        """Turn what was read into gammas, or their sums over tokens: once a batch, once a layer where that is much."""
        places = sorted(self.readings)
        read, lengths = [], []
        for products, first, length in map(self.readings.__getitem__, places):
            read.append(products[first : first + self.rows])
            lengths.append(length)
        self.readings.clear()
        parts = torch.stack(read).reshape(len(places), max(map(len, self.names)), -1, *lengths[0].shape)
        gammas = parts.square().sum(2).sqrt() / torch.stack(lengths)[:, None]  # (places, targets, batch, n)
        if not self.by_token:
            risen = gammas > gammas[[places.index((layer, 0)) for layer, _ in places]]
            if self.mask is not None:
                gammas, risen = torch.where(self.mask, gammas, 0), risen & self.mask
            gammas = torch.stack([gammas.sum(-1, dtype=torch.float64), risen.sum(-1)], dim=2)
        self.places += places
        self.reduced.append(gammas.cpu().numpy())

    def finish(self) -> None:
        """Add the batch's readings to the texts that they belong to."""
        if self.readings:
            self._reduce()
        found = np.concatenate(self.reduced)
        for row, window in enumerate(self.batch):
            if self.by_token:
                gammas = found[:, :, row, : len(window.ids)].astype(np.float32)
                self.windows.setdefault(window.text, []).append((window.place, window.ids, gammas))
            else:
                self.lengths[window.text] = self.lengths.get(window.text, 0) + len(window.ids)
                self.sums[window.text] = self.sums.get(window.text, 0) + found[..., row]

    def text_table(self) -> pd.DataFrame:
        """One row a layer, stage, target and text."""
        frames = []
        texts = sorted(self.sums)
        for layer, names in enumerate(self.names):
            own = [i for i, (of, _) in enumerate(self.places) if of == layer]
            block = np.stack([self.sums[text][own, : len(names)] for text in texts])  # text, stage, target, 2
            frames.append(
                pd.DataFrame(
                    {
                        "layer": layer,
                        "stage": np.tile(np.repeat(self.stages, len(names)), len(texts)),
                        "target": np.tile(names, len(texts) * len(self.stages)),
                        "text": np.repeat(texts, len(self.stages) * len(names)),
                        "n": np.repeat([self.lengths[t] for t in texts], len(self.stages) * len(names)),
                        "gamma": block[..., 0].ravel(),
                        "risen": block[..., 1].ravel().astype(np.int64),
                    }
                )
            )
        return self._finished(pd.concat(frames, ignore_index=True))

    def token_table(self) -> pd.DataFrame:
        """One row a layer, stage, target, text and token."""
        frames = []
        for text in sorted(self.windows):
            # Batches are formed by length, so a text's windows come in any order.
            windows = sorted(self.windows[text], key=lambda window: window[0])
            gammas = np.concatenate([gamma for _, _, gamma in windows], axis=2)  # places, targets, n
            tokens = self.model.tokenizer.convert_ids_to_tokens([token for _, ids, _ in windows for token in ids])
            for place, (layer, at) in enumerate(self.places):
                names = self.names[layer]
                frames.append(
                    pd.DataFrame(
                        {
                            "layer": layer,
                            "stage": self.stages[at],
                            "target": np.tile(names, len(tokens)),
                            "text": text,
                            "position": np.repeat(np.arange(len(tokens)), len(names)),
                            "token": np.repeat(tokens, len(names)),
                            "gamma": gammas[place, : len(names)].T.ravel(),
                        }
                    )
                )
        return self._finished(pd.concat(frames, ignore_index=True))

    def _finished(self, table: pd.DataFrame) -> pd.DataFrame:
        table.insert(0, "model", self.model.name)
        return table.astype({"model": "category", "stage": "category", "target": "category"})


def _chosen(targets: Target | Sequence[Target] | None, by: str) -> tuple[str, ...]:
    if targets is None:
        return _TARGETS if by == "text" else ("own",)
    chosen = (targets,) if isinstance(targets, str) else tuple(targets)
    unknown = [target for target in chosen if target not in _TARGETS]
    if unknown or not chosen:
        raise CompanionError(f"targets={targets!r} is unknown; use some of {', '.join(_TARGETS)}")
    return tuple(target for target in _TARGETS if target in chosen)


def _subspaces(
    sources: Sequence[AttentionLayer] | Sequence[Tensor],
    order: Order,
    chosen: Sequence[str],
    seed: int,
    draws: int,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[list[list[str]], Tensor]:
    """Names of each layer's targets, and their bases, a vector a row: (layers, targets * width, d), zero-padded."""
    first = {id(source): i for i, source in reversed(list(enumerate(sources)))}
    own = {key: spectrum(_matrix(sources[i]), order=order).basis for key, i in first.items()}
    found: list[dict[str, NDArray[np.float64]]] = []
    for index, source in enumerate(sources):
        d, dimension = own[id(source)].shape
        bases: dict[str, NDArray[np.float64]] = {}
        if "own" in chosen:
            bases["own"] = own[id(source)]
        if "random" in chosen:
            drawn = random_subspaces(d, dimension, draws, seed=seed + 1000 * index)
            bases.update({f"random-{i}": draw for i, draw in enumerate(drawn)})
        if "other" in chosen:
            bases.update(
                {f"layer-{i}": own[key] for key, i in sorted(first.items(), key=lambda e: e[1]) if key != id(source)}
            )
        found.append(bases)
    if not any(found):
        raise CompanionError("all layers share their weights, so there are no other layers' subspaces; use 'random'")
    width = max(basis.shape[1] for bases in found for basis in bases.values())
    rows = np.zeros((len(found), max(map(len, found)), width, d))
    for layer, bases in enumerate(found):
        for place, basis in enumerate(bases.values()):
            rows[layer, place, : basis.shape[1]] = basis.T
    return [list(bases) for bases in found], torch.tensor(rows, dtype=dtype, device=device).flatten(1, 2)


def _version(x: Tensor) -> int | None:
    """How often a tensor was changed in place, where torch counts it."""
    return None if x.is_inference() else x._version


def _products(basis: Tensor, tokens: Tensor) -> Tensor:
    """Inner products of a basis's rows with tokens: from (k, d) and (n, d) to (k, n)."""
    # For a few rows this way round is faster, up to fourfold; for many the other way.
    few = len(basis) <= 2 * _FEW
    return torch.nn.functional.linear(basis, tokens) if few else torch.nn.functional.linear(tokens, basis).T


def _matrix(source: AttentionLayer | Tensor) -> Tensor:
    return source if isinstance(source, Tensor) else layer_matrix(source)


def _batches(windows: Iterator[Window], size: int) -> Iterator[list[Window]]:
    """Batches of similar length, from a look-ahead of 32 batches: little padding, flat memory."""
    while ahead := list(islice(windows, 32 * size)):
        ahead.sort(key=lambda window: len(window.ids))
        for i in range(0, len(ahead), size):
            yield ahead[i : i + size]


def _pad(batch: list[Window], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(len(window.ids) for window in batch)
    padded = torch.tensor([window.ids + [0] * (longest - len(window.ids)) for window in batch], device=device)
    lengths = torch.tensor([[len(window.ids)] for window in batch], device=device)
    return padded, torch.arange(longest, device=device) < lengths
