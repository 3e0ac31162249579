"""How far tokens lean towards a subspace, and a trace's summary layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.errors import CompanionError

__all__ = ["alignment", "by_target", "excess", "tilt", "turns"]


def alignment(x: Tensor, basis: Tensor | NDArray[np.float64]) -> Tensor:
    r"""Return the share of each token's length that lies in a subspace, :math:`\gamma = \|P x\| / \|x\|`.

    Parameters
    ----------
    x : Tensor, shape (..., d)
        Tokens; they need not be of unit norm.
    basis : Tensor or ndarray, shape (d, r)
        Orthonormal columns, such as :attr:`Spectrum.basis`.

    Returns
    -------
    Tensor, shape (...)
        Values in [0, 1], in the dtype of ``x``; the sign of a direction does not matter.

    Raises
    ------
    CompanionError
        If the shapes do not fit.
    """
    columns = torch.as_tensor(basis, dtype=x.dtype, device=x.device)
    if columns.ndim != 2 or columns.shape[0] != x.shape[-1]:
        raise CompanionError(
            f"a basis of shape {tuple(columns.shape)} does not fit tokens of shape {tuple(x.shape)}; "
            f"it must be ({x.shape[-1]}, r)"
        )
    length = torch.linalg.vector_norm(x, dim=-1)
    return (torch.linalg.vector_norm(x @ columns, dim=-1) / length).clamp(max=1.0)


def tilt(trace: pd.DataFrame, resamples: int = 2000, seed: int = 0) -> pd.DataFrame:
    r"""Summarise a trace layer by layer: mean alignment, share of risen tokens, intervals and nulls.

    :math:`\gamma_t` is the mean alignment at stage ``attention``; :math:`\rho_t` the share of tokens whose
    alignment there is above that at stage ``in``. Intervals are 95 % percentile intervals over
    resampled *texts*, since tokens of one text are not independent.

    Parameters
    ----------
    trace : DataFrame
        Table of :func:`trace` for one model, by text or by token.
    resamples, seed : int
        Number of bootstrap resamples, and their seed.

    Returns
    -------
    DataFrame
        One row a layer: layer, gamma, gamma_low, gamma_high, rho, rho_low, rho_high, gamma_null, rho_null
        (mean over random subspaces), gamma_other, rho_other (mean over other layers' eigenspaces), texts,
        tokens. Intervals are empty for fewer than two texts, null columns where their targets are not in
        the trace.
    """
    sums = _sums(trace)
    own = sums["own"]
    rows: dict[str, Any] = {"layer": own.layers}
    for name in ("gamma", "rho"):
        rows[name] = own.mean(name)
        rows[f"{name}_low"], rows[f"{name}_high"] = _interval(own.resampled(name, resamples, seed), own.texts)
    for kind, suffix in (("random", "null"), ("layer", "other")):
        for name in ("gamma", "rho"):
            rows[f"{name}_{suffix}"] = sums[kind].mean(name) if kind in sums else np.nan
    return pd.DataFrame({**rows, "texts": own.texts, "tokens": own.tokens})


def excess(trace: pd.DataFrame, over: Literal["other", "random"], resamples: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Compare a layer's own principal eigenspace with its null, text by text.

    Parameters
    ----------
    trace : DataFrame
        Table of :func:`trace` for one model, with the target ``"own"`` and the one named by ``over``.
    over : {"other", "random"}
        Which null: the other layers' eigenspaces, or random subspaces.
    resamples, seed : int
        As in :func:`tilt`. The same resampled texts serve both sides, so the interval is a paired one.

    Returns
    -------
    DataFrame
        One row a layer: layer, gamma, gamma_low, gamma_high, rho, rho_low, rho_high: own minus null.

    Raises
    ------
    CompanionError
        If the trace does not hold that null.
    """
    sums = _sums(trace)
    kind = {"other": "layer", "random": "random"}.get(over)
    if kind not in sums:
        raise CompanionError(f"the trace holds no target {over!r}; trace it with targets=('own', {over!r})")
    rows: dict[str, Any] = {"layer": sums["own"].layers}
    for name in ("gamma", "rho"):
        rows[name] = sums["own"].mean(name) - sums[kind].mean(name)
        draws = sums["own"].resampled(name, resamples, seed) - sums[kind].resampled(name, resamples, seed)
        rows[f"{name}_low"], rows[f"{name}_high"] = _interval(draws, sums["own"].texts)
    return pd.DataFrame(rows)


def turns(trace: pd.DataFrame) -> pd.DataFrame:
    r"""Split each layer's change of alignment into what attention, norms and feed-forward part do.

    Along the stages of a layer the changes of :math:`\gamma` add up to the whole, exactly: attention (the residual sum
    after it against ``in``), norm (after it), feed-forward (its sum), and the norm behind that. A pre-norm network's
    norms do not touch the stream, so there attention and feed-forward part share the whole.

    Parameters
    ----------
    trace : DataFrame
        Table of :func:`companion.trace` by text, with the target "own".

    Returns
    -------
    DataFrame
        One row a text, layer and part: model, text, layer, part ("attention", "norm", "feed-forward", "second norm",
        and "whole"), n (tokens), change (of the mean gamma over the text's tokens).

    Raises
    ------
    CompanionError
        If the trace lacks a stage, or holds no target "own".
    """
    own = trace[trace["target"].astype(str) == "own"]
    if own.empty or "risen" not in own:
        raise CompanionError("the trace holds no rows by text of the target 'own'")
    gamma = own.assign(mean=own["gamma"] / own["n"]).pivot_table(
        index=["model", "text", "layer", "n"], columns="stage", values="mean", observed=True
    )
    if "input_norm" in gamma:  # norms read the stream there and do not change it
        chain = {"attention": "attention", "feed-forward": "out"}
    elif "ffn" in gamma:
        chain = {"attention": "attention", "norm": "norm", "feed-forward": "ffn", "second norm": "out"}
    else:
        chain = {"attention": "attention", "norm": "norm", "feed-forward": "out"}
    before = gamma[["in", *chain.values()]].iloc[:, :-1].to_numpy()
    parts = pd.DataFrame(gamma[list(chain.values())].to_numpy() - before, gamma.index, list(chain))
    parts["whole"] = gamma["out"] - gamma["in"]
    return parts.reset_index().melt(["model", "text", "layer", "n"], var_name="part", value_name="change")


def by_target(trace: pd.DataFrame) -> pd.DataFrame:
    """Return gamma and rho over all tokens at stage ``attention``, indexed by layer and target."""
    after = trace[trace["stage"] == "attention"].astype({"target": str})
    sums = after.groupby(["layer", "target"])[["gamma", "risen", "n"]].sum()
    return pd.DataFrame({"gamma": sums["gamma"] / sums["n"], "rho": sums["risen"] / sums["n"]})


@dataclass(frozen=True)
class _Sums:
    """Sums over tokens at stage ``attention``, (layers, texts) each, for one kind of target."""

    layers: NDArray[np.int64]
    n: NDArray[np.float64]
    gamma: NDArray[np.float64]
    rho: NDArray[np.float64]

    @property
    def texts(self) -> int:
        return self.n.shape[1]

    @property
    def tokens(self) -> NDArray[np.int64]:
        return self.n.sum(axis=1).astype(np.int64)

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return the mean over tokens, one a layer."""
        return np.asarray(getattr(self, name).sum(axis=1) / self.n.sum(axis=1))

    def resampled(self, name: str, resamples: int, seed: int) -> NDArray[np.float64]:
        """Return the mean over tokens in resampled texts, (layers, resamples)."""
        chance = np.full(self.texts, 1 / self.texts)
        weights = np.random.default_rng(seed).multinomial(self.texts, chance, size=resamples).T
        return np.asarray((getattr(self, name) @ weights) / (self.n @ weights))


def _interval(draws: NDArray[np.float64], texts: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % percentile interval of each layer; empty where one text cannot show how texts differ."""
    if texts < 2:
        return np.full(len(draws), np.nan), np.full(len(draws), np.nan)
    low, high = np.quantile(draws, [0.025, 0.975], axis=1)
    return low, high


def _sums(trace: pd.DataFrame) -> dict[str, _Sums]:
    """Return the sums by kind of target: own, random, layer."""
    models = trace["model"].unique()
    if len(models) != 1:
        raise CompanionError(f"the trace holds {len(models)} models; give the rows of one")
    if "risen" not in trace:
        trace = _by_text(trace)
    after = trace[trace["stage"] == "attention"]
    after = after.assign(kind=after["target"].astype(str).str.split("-").str[0])
    table = after.groupby(["kind", "layer", "text"], observed=True)[["n", "gamma", "risen"]].sum()
    if "own" not in table.index.unique("kind"):
        raise CompanionError("the trace holds no target 'own'; trace it with targets=('own', ...)")
    layers = table.loc["own"].index.unique("layer").to_numpy()
    return {
        kind: _Sums(layers, *(rows[c].unstack("text").reindex(layers).to_numpy(float) for c in ("n", "gamma", "risen")))
        for kind, rows in ((kind, table.loc[kind]) for kind in table.index.unique("kind"))
    }


def _by_text(tokens: pd.DataFrame) -> pd.DataFrame:
    """Sum a table by token to the table by text."""
    keys = ["model", "layer", "target", "text", "position"]
    before = tokens[tokens["stage"] == "in"].set_index(keys)["gamma"].rename("before")
    joined = tokens.join(before, on=keys)
    joined["risen"] = joined["gamma"] > joined["before"]
    grouped = joined.groupby(["model", "layer", "stage", "target", "text"], observed=True)
    return grouped.agg(n=("gamma", "size"), gamma=("gamma", "sum"), risen=("risen", "sum")).reset_index()
