"""How far tokens lean towards a subspace, and a trace's summary layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.errors import CompanionError

__all__ = ["alignment", "tilt"]


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
    if len(trace["model"].unique()) != 1:
        raise CompanionError(f"the trace holds {trace['model'].nunique()} models; call tilt on the rows of one")
    if "risen" not in trace:
        trace = _by_text(trace)
    after = trace[trace["stage"] == "attention"].copy()
    after["kind"] = after["target"].astype(str).str.split("-").str[0]
    sums = after.groupby(["kind", "layer", "text"], observed=True)[["n", "gamma", "risen"]].sum()
    own = sums.loc["own"]
    n, gamma, risen = (own[name].unstack("text").to_numpy(dtype=float) for name in ("n", "gamma", "risen"))
    texts = n.shape[1]
    rows: dict[str, Any] = {"layer": own.index.unique("layer").to_numpy()}
    weights = np.random.default_rng(seed).multinomial(texts, np.full(texts, 1 / texts), size=resamples).T
    for name, part in (("gamma", gamma), ("rho", risen)):
        rows[name] = part.sum(axis=1) / n.sum(axis=1)
        low, high = np.quantile((part @ weights) / (n @ weights), [0.025, 0.975], axis=1)
        rows[f"{name}_low"], rows[f"{name}_high"] = (low, high) if texts > 1 else (np.nan, np.nan)
    for kind, suffix in (("random", "null"), ("layer", "other")):
        means = sums.loc[kind].groupby("layer").sum() if kind in sums.index.unique("kind") else None
        for name, column in (("gamma", "gamma"), ("rho", "risen")):
            ratio = np.nan if means is None else (means[column] / means["n"]).reindex(rows["layer"]).to_numpy()
            rows[f"{name}_{suffix}"] = ratio
    rows["texts"], rows["tokens"] = texts, n.sum(axis=1).astype(int)
    order = [f"{name}{end}" for name in ("gamma", "rho") for end in ("", "_low", "_high")]
    order += [f"{name}_{suffix}" for suffix in ("null", "other") for name in ("gamma", "rho")]
    return pd.DataFrame(rows)[["layer", *order, "texts", "tokens"]]


def _by_text(tokens: pd.DataFrame) -> pd.DataFrame:
    """Sum a table by token to the table by text."""
    keys = ["model", "layer", "target", "text", "position"]
    before = tokens[tokens["stage"] == "in"].set_index(keys)["gamma"].rename("before")
    joined = tokens.join(before, on=keys)
    joined["risen"] = joined["gamma"] > joined["before"]
    grouped = joined.groupby(["model", "layer", "stage", "target", "text"], observed=True)
    return grouped.agg(n=("gamma", "size"), gamma=("gamma", "sum"), risen=("risen", "sum")).reset_index()
