"""What a model's matrices say, layer by layer, before any token is followed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from companion import hooks
from companion.layers import layer_matrix
from companion.spectrum import Order, spectrum
from companion.stability import head_affinity

__all__ = ["survey"]


def survey(model: Any, texts: Iterable[str], order: Order = "residual") -> pd.DataFrame:
    r"""Return each layer's leading eigenvalue and what its heads do with two tokens along that eigenvector.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        What the token norms are taken from.
    order : {"residual", "modulus", "real"}
        Which eigenvalue leads, see :func:`companion.spectrum`.

    Returns
    -------
    DataFrame
        One row a layer and head: model, layer, head; kind, real, imag (of the leading eigenvalue), growth
        (:math:`|1 + \lambda|`), gap; norm (mean norm of the tokens that attention reads) and affinity (the
        head's b along :math:`v_1` at that norm, see :func:`companion.head_affinity`; empty where the leading
        eigenvalue is complex, so that there is no single direction, or positions turn queries and keys).

    Raises
    ------
    TextError
        If there is no text, or one is empty.
    """
    norms = _token_norms(model, texts)
    found: dict[int, Any] = {}  # spectra of shared layers are computed once
    rows = []
    for index, layer in enumerate(model.layers):
        if id(layer) not in found:
            found[id(layer)] = spectrum(layer_matrix(layer), order=order)
        leading = found[id(layer)]
        if leading.kind == "real" and layer.rotate is None:
            b = head_affinity(layer, torch.from_numpy(leading.vectors[:, 0].real.copy()), norms[index]).tolist()
        else:
            b = [np.nan] * layer.n_heads
        for head, affinity in enumerate(b):
            rows.append(
                {
                    "layer": index,
                    "head": head,
                    **leading.leading,
                    "norm": norms[index],
                    "affinity": affinity,
                }
            )
    table = pd.DataFrame(rows)
    table.insert(0, "model", model.name)
    return table


def _token_norms(model: Any, texts: Iterable[str]) -> list[float]:
    """Mean norm of what each layer's attention reads: the normalised token in pre-norm networks."""
    total, count = [0.0] * len(model.sites), [0] * len(model.sites)
    stage = "in" if model.sites[0].input_norm is None else "input_norm"

    def see(_text: int, layer: int, _stage: str, x: Tensor) -> None:
        total[layer] += float(x.double().norm(dim=-1).sum())
        count[layer] += x.shape[0] * x.shape[1]

    hooks.walk(model, texts, [stage], see)
    return [t / n for t, n in zip(total, count, strict=True)]
