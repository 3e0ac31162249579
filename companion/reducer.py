"""Turn readings of the residual stream into sums of alignments as they come: what a trace puts behind its hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.errors import CompanionError
from companion.layers import AttentionLayer, layer_matrix
from companion.spectrum import Order, random_subspaces, spectrum

__all__ = ["Reducer", "Window"]

_STAGES = ("in", "input_norm", "attention", "norm", "ffn", "out")
# So many vectors at most are few, and so many tokens wait for each other where they are.
_FEW, _WAITING = 8, 2**13


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


class _Batch(NamedTuple):
    """A batch whose readings wait: which columns they have, and what was found a layer or for all layers."""

    windows: list[Window]
    mask: Tensor | None
    columns: slice
    found: list[NDArray[np.float64]]


class Reducer:
    """Sums of alignments over texts, or the alignments of single tokens.

    ``start`` a batch, let the hooks call ``see``, ``finish`` the batch; at the end take a table.

    Between the network's large products every operation starts with cold caches and costs some ten times as much as
    in a loop. So of a reading only the inner products with the bases and the tokens' lengths are computed at once, into
    memory that lies ready. The rest is done for several batches together, or layer by layer where bases are many.
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
        self.stages = [stage for stage in _STAGES if all(stage in site.stages for site in model.sites)]
        # Half precision is too coarse to sum in; wider readings are used as they are.
        self.dtype = torch.promote_types(model.network.dtype, torch.float32)
        self.names, stacked = _subspaces(
            model.layers if matrices is None else matrices, order, chosen, seed, draws, model.device, self.dtype
        )
        self.together = stacked.shape[1] <= _FEW
        self.places = (len(stacked) if self.together else 1) * len(self.stages)
        # What leaves a layer enters the next: it is measured against both layers' bases.
        followed = torch.cat([stacked, torch.zeros_like(stacked[:1])])
        self.readings: dict[tuple[int, str], tuple[int, Tensor]] = {}  # place in memory, vectors as columns
        for layer, at in np.ndindex(len(stacked), len(self.stages)):
            stage, place = self.stages[at], (layer * len(self.stages) + at) % self.places
            basis = followed[layer : layer + 2].flatten(0, 1) if stage == "out" else stacked[layer]
            self.readings[layer, stage] = place, basis.T
        self.products = torch.empty(self.places + 1, stacked.shape[1], 0, dtype=self.dtype, device=model.device)
        self.norms = torch.empty(self.places + 1, 0, dtype=self.dtype, device=model.device)
        self.waiting: list[_Batch] = []
        self.by_token = tokens
        self.lengths: dict[int, int] = {}
        self.sums: dict[int, NDArray[np.float64]] = {}
        self.windows: dict[int, list[tuple[int, list[int], NDArray[np.float32]]]] = {}

    def start(self, windows: list[Window], mask: Tensor | None) -> None:
        """Take note of the windows in a batch and of which positions hold tokens (None: all)."""
        size = len(windows) * max(len(window.ids) for window in windows)
        first = self.waiting[-1].columns.stop if self.waiting else 0
        if first + size > self.norms.shape[1]:
            self._settle()
            first = 0
        if size > self.norms.shape[1]:
            room = max(size, _WAITING if self.together else 0)
            self.products = self.products.new_empty(*self.products.shape[:2], room)
            self.norms = self.norms.new_empty(len(self.norms), room)
        columns = slice(first, first + size)
        self.waiting.append(_Batch(windows, mask, columns, []))
        self.seen = 0
        self.same: list[int] = []
        self.ahead: tuple[Tensor, int | None] | None = None
        # Views made here cost a tenth of what they would in ``see``.
        products = self.products[..., columns]
        into = [each.T for each in products]
        for out in range(len(self.stages) - 1, self.places, len(self.stages)):
            into[out] = products[out : out + 2].flatten(0, 1).T
        self.into = list(zip(into, self.norms[:, columns], strict=True))

    def see(self, layer: int, stage: str, x: Tensor) -> None:
        """Reduce one reading to its inner products with the bases, and its tokens' lengths."""
        self.seen += 1
        place, basis = self.readings[layer, stage]
        if stage == "in" and self.ahead is not None:
            before, version = self.ahead
            self.ahead = None
            if before is x and version is not None and version == _version(x):
                self.same.append(place)
                return
        products, norms = self.into[place]
        tokens = x.flatten(0, 1) if x.dtype == self.dtype else x.flatten(0, 1).to(self.dtype)
        torch.linalg.vector_norm(tokens, dim=-1, out=norms)
        torch.mm(tokens, basis, out=products)
        if stage == "out":
            self.ahead = x, _version(x)
            if not self.together:
                self._reduce()
                # The next layer's first place.
                self.products[0], self.norms[0] = self.products[-1], self.norms[-2]

    def finish(self) -> None:
        """End a batch.

        Raises
        ------
        CompanionError
            If the network did not pass all its layers.
        """
        wanted = len(self.names) * len(self.stages)
        if self.seen != wanted:
            raise CompanionError(
                f"{self.model.name}: {self.seen} of {wanted} readings came; the network does not run all its layers"
            )
        self.ahead = None
        if self.together:
            for place in self.same:
                self.into[place][1].copy_(self.into[place - 1][1])
        else:
            self._settle()

    def _reduce(self) -> None:
        """Turn what was read into gammas, or into their sums over tokens."""
        end = self.waiting[-1].columns.stop
        within = self.products[:-1, :, :end].reshape(self.places, max(map(len, self.names)), -1, end)
        gammas = within.square().sum(2).sqrt() / self.norms[:-1, None, :end]  # (places, targets, tokens)
        layers = gammas.unflatten(0, (-1, len(self.stages)))
        risen = (layers > layers[:, :1]).flatten(0, 1)
        for batch in self.waiting:
            shape = (len(batch.windows), -1)
            found = gammas[..., batch.columns].unflatten(-1, shape)
            if not self.by_token:
                up = risen[..., batch.columns].unflatten(-1, shape)
                if batch.mask is not None:
                    found, up = torch.where(batch.mask, found, 0), up & batch.mask
                found = torch.stack([found.sum(-1, dtype=torch.float64), up.sum(-1)], dim=2)
            batch.found.append(found.cpu().numpy())

    def _settle(self) -> None:
        """Add the readings of the batches that wait to the texts that they belong to."""
        if self.together and self.waiting:
            self._reduce()
        for batch in self.waiting:
            found = np.concatenate(batch.found)
            for row, window in enumerate(batch.windows):
                if self.by_token:
                    gammas = found[:, :, row, : len(window.ids)].astype(np.float32)
                    self.windows.setdefault(window.text, []).append((window.place, window.ids, gammas))
                else:
                    self.lengths[window.text] = self.lengths.get(window.text, 0) + len(window.ids)
                    self.sums[window.text] = self.sums.get(window.text, 0) + found[..., row]
        self.waiting.clear()

    def text_table(self) -> pd.DataFrame:
        """One row a layer, stage, target and text."""
        self._settle()
        frames = []
        texts = sorted(self.sums)
        for layer, names in enumerate(self.names):
            own = slice(layer * len(self.stages), (layer + 1) * len(self.stages))
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
        self._settle()
        frames = []
        for text in sorted(self.windows):
            # Batches are formed by length, so a text's windows come in any order.
            windows = sorted(self.windows[text], key=lambda window: window[0])
            gammas = np.concatenate([gamma for _, _, gamma in windows], axis=2)  # places, targets, n
            tokens = self.model.tokenizer.convert_ids_to_tokens([token for _, ids, _ in windows for token in ids])
            for place in range(len(gammas)):
                layer, at = divmod(place, len(self.stages))
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


def _matrix(source: AttentionLayer | Tensor) -> Tensor:
    return source if isinstance(source, Tensor) else layer_matrix(source)
