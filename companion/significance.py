"""Is a layer's own eigenspace special? Tests whose null is exact, and their correction for many layers.

Texts say how well a mean is known, and nothing about whether another subspace would have done as well: any fixed
subspace has its own mean. So the null here is over *subspaces*: the own one takes a random place among random ones
if nothing singles it out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from companion.alignment import by_target
from companion.errors import CompanionError

__all__ = ["against_other_layers", "against_random", "holm"]


def against_random(trace: pd.DataFrame) -> pd.DataFrame:
    r"""Compare each layer's own principal eigenspace with random subspaces of the same dimension.

    :math:`p = (1 + \#\{\text{draws at least as large}\}) / (1 + \text{draws})`, which is exact under the null that
    the own subspace is a random one as well (Phipson and Smyth, 2010). One-sided: larger.

    Parameters
    ----------
    trace : DataFrame
        Table of :func:`companion.trace` by text, with the targets "own" and "random". With k layers Holm's
        correction can reach 0.05 only from about 20 k draws on.

    Returns
    -------
    DataFrame
        One row a layer: layer; gamma, gamma_effect (own minus the mean of the draws, in standard deviations of the
        draws), gamma_p, gamma_holm; the same for rho; draws.

    Raises
    ------
    CompanionError
        If the trace does not hold both targets.
    """
    table = by_target(trace)
    kinds = table.index.get_level_values("target").astype(str)
    own = table[kinds == "own"].droplevel("target")
    random = table[kinds.str.startswith("random-")]
    if own.empty or random.empty:
        raise CompanionError("the trace lacks the target 'own' or 'random'; trace it with targets=('own', 'random')")
    result = pd.DataFrame({"layer": own.index})
    for name in ("gamma", "rho"):
        draws = random[name].unstack("target").reindex(own.index).to_numpy(float)
        value = own[name].to_numpy(float)
        p = (1 + (draws >= value[:, None]).sum(1)) / (1 + draws.shape[1])
        result[name] = value
        result[f"{name}_effect"] = (value - draws.mean(1)) / draws.std(1, ddof=1)
        result[f"{name}_p"] = p
        result[f"{name}_holm"] = holm(p)
        result["draws"] = draws.shape[1]
    return result


def against_other_layers(trace: pd.DataFrame, permutations: int = 9999, seed: int = 0) -> dict[str, float]:
    """Ask whether layers go with their own eigenspaces, by giving the eigenspaces to the layers in other orders.

    The statistic is the mean over layers of rho with the eigenspace that the layer is given. If eigenspaces are
    exchangeable between layers, the true order is one among all of them.

    Parameters
    ----------
    trace : DataFrame
        Table of :func:`companion.trace` by text, with the targets "own" and "other".
    permutations, seed : int
        Number of random orders, and their seed.

    Returns
    -------
    dict
        own and other (mean rho on the diagonal and off it), difference, p (one-sided: larger), layers.

    Raises
    ------
    CompanionError
        If the trace does not hold both targets, or layers share weights.
    """
    table = by_target(trace)["rho"].unstack("target")
    layers = table.index.to_numpy()
    matrix = np.full((len(layers), len(layers)), np.nan)
    for row, layer in enumerate(layers):
        for column, other in enumerate(layers):
            name = "own" if layer == other else f"layer-{other}"
            matrix[row, column] = table.loc[layer, name] if name in table else np.nan
    if np.isnan(matrix).any() or len(layers) < 2:
        raise CompanionError(
            "the trace lacks some layers' eigenspaces: trace it with targets=('own', 'other'); layers that share "
            "weights share their eigenspace and cannot be told apart"
        )
    rng = np.random.default_rng(seed)
    own = float(np.diagonal(matrix).mean())
    orders = np.argsort(rng.random((permutations, len(layers))), axis=1)
    reached = matrix[np.arange(len(layers)), orders].mean(1)
    other = float(matrix[~np.eye(len(layers), dtype=bool)].mean())
    # The identity is among the random orders as well; rounding must not count it as smaller.
    p = (1 + int((reached >= own - 1e-12).sum())) / (1 + permutations)
    return {"own": own, "other": other, "difference": own - other, "p": p, "layers": float(len(layers))}


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust p-values of one family by Holm's step-down method: compare the results with the level itself."""
    p = np.asarray(p, dtype=float)
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
