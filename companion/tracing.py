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
        self.names, self.columns = _subspaces(
            model.layers if matrices is None else matrices, order, chosen, seed, draws, model.device, dtype
        )
        self.by_token = tokens
        self.lengths: dict[int, int] = {}
        self.sums: dict[int, NDArray[np.float64]] = {}
        self.windows: dict[int, list[tuple[int, list[int], NDArray[np.float32]]]] = {}

    def start(self, batch: list[Window], mask: Tensor) -> None:
        """Take note of the windows in a batch and of which positions hold tokens."""
        self.batch, self.mask = batch, mask
        self.before: dict[int, Tensor] = {}
        self.readings: list[tuple[int, int, Tensor]] = []

    def see(self, layer: int, stage: str, x: Tensor) -> None:
        """Reduce one reading."""
        x = x.to(self.columns[layer].dtype)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        within = torch.linalg.vector_norm((x @ self.columns[layer]).unflatten(-1, (len(self.names[layer]), -1)), dim=-1)
        gamma = within / length  # (batch, n, targets)
        at = self.stages.index(stage)
        if self.by_token:
            self.readings.append((layer, at, gamma))
            return
        if stage == "in":
            self.before[layer] = gamma
        risen = (gamma > self.before[layer]) & self.mask[..., None]
        kept = torch.where(self.mask[..., None], gamma, 0)
        self.readings.append((layer, at, torch.stack([kept.sum(1, dtype=torch.float64), risen.sum(1).double()])))
        if stage == "out":
            del self.before[layer]

    def finish(self) -> None:
        """Add the batch's readings to the texts that they belong to."""
        widest = max(map(len, self.names))
        for row, window in enumerate(self.batch):
            if self.by_token:
                gammas = [gamma[row, : len(window.ids)].float().cpu().numpy() for _, _, gamma in self.readings]
                self.windows.setdefault(window.text, []).append((window.place, window.ids, _padded(gammas, widest)))
                continue
            self.lengths[window.text] = self.lengths.get(window.text, 0) + len(window.ids)
            if window.text not in self.sums:
                self.sums[window.text] = np.zeros((len(self.names), len(self.stages), widest, 2))
            for layer, at, pair in self.readings:
                values = pair[:, row].cpu().numpy()
                self.sums[window.text][layer, at, : values.shape[1]] += values.T
        self.places = [(layer, at) for layer, at, _ in self.readings]

    def text_table(self) -> pd.DataFrame:
        """One row a layer, stage, target and text."""
        frames = []
        texts = sorted(self.sums)
        for layer, names in enumerate(self.names):
            block = np.stack([self.sums[text][layer, :, : len(names)] for text in texts])  # text, stage, target, 2
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
            gammas = np.concatenate([gamma for _, _, gamma in windows], axis=1)  # places, n, targets
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
                            "gamma": gammas[place][:, : len(names)].ravel(),
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
) -> tuple[list[list[str]], list[Tensor]]:
    """Names of each layer's targets, and their bases side by side: (d, targets * width), zero-padded."""
    first = {id(source): i for i, source in reversed(list(enumerate(sources)))}
    own = {key: spectrum(_matrix(sources[i]), order=order).basis for key, i in first.items()}
    names, columns = [], []
    for index, source in enumerate(sources):
        d, dimension = own[id(source)].shape
        bases: dict[str, NDArray[np.float64]] = {}
        if "own" in chosen:
            bases["own"] = own[id(source)]
        if "random" in chosen:
            found = random_subspaces(d, dimension, draws, seed=seed + 1000 * index)
            bases.update({f"random-{i}": draw for i, draw in enumerate(found)})
        if "other" in chosen:
            bases.update(
                {f"layer-{i}": own[key] for key, i in sorted(first.items(), key=lambda e: e[1]) if key != id(source)}
            )
        width = max((basis.shape[1] for basis in bases.values()), default=1)
        wide = [np.pad(basis, ((0, 0), (0, width - basis.shape[1]))) for basis in bases.values()]
        names.append(list(bases))
        columns.append(torch.as_tensor(np.hstack(wide) if wide else np.zeros((d, 0)), dtype=dtype, device=device))
    return names, columns


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


def _padded(window: list[NDArray[np.float32]], targets: int) -> NDArray[np.float32]:
    """Stack arrays of shape (n, up to targets), filling with NaN."""
    return np.stack([np.pad(g, ((0, 0), (0, targets - g.shape[1])), constant_values=np.nan) for g in window])
