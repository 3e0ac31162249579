"""What attention does to a token's component along an eigenvector: build it up, shrink it, or turn it round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from companion import hooks
from companion.layers import layer_matrix
from companion.spectrum import Order, spectrum

__all__ = ["fates"]


def fates(model: Any, texts: Iterable[str], order: Order = "modulus") -> pd.DataFrame:
    r"""Follow the signed component along each layer's leading eigenvector through its attention.

    With :math:`c = v_1^\top x` in front of the layer and :math:`c'` after the residual sum, a token is *grown* if
    :math:`c'` has the sign of c and is larger, *shrunk* if it has the sign and is smaller, *overshot* if the sign
    turns. A negative eigenvalue would shrink (above -1) or overshoot (below) if attention acted on the token alone.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        Windows are taken one at a time; every token counts once.
    order : {"residual", "modulus", "real"}
        Which eigenvalue leads, see :func:`companion.spectrum`.

    Returns
    -------
    DataFrame
        One row a layer and text: model, layer, text, n (tokens), real (the leading eigenvalue), and the shares
        grown, shrunk, overshot. Layers that are led by a complex pair have no such direction and no rows.

    Raises
    ------
    TextError
        If there is no text, or one is empty.
    """
    found: dict[int, Any] = {}
    for layer in model.layers:
        if id(layer) not in found:
            found[id(layer)] = spectrum(layer_matrix(layer), order=order)
    leading = [found[id(layer)] for layer in model.layers]
    before: dict[int, Tensor] = {}
    rows: dict[tuple[int, int], Tensor] = {}

    def see(text: int, layer: int, stage: str, x: Tensor) -> None:
        if leading[layer].kind != "real":
            return
        v = torch.as_tensor(leading[layer].vectors[:, 0].real, dtype=torch.float64, device=x.device)
        c = x.double() @ v
        if stage == "in":
            before[layer] = c
            return
        first = before.pop(layer)
        kept = first * c > 0
        grown = kept & (c.abs() > first.abs())
        counts = torch.tensor([c.numel(), int(grown.sum()), int((kept & ~grown).sum()), int((~kept).sum())])
        rows[layer, text] = rows.get((layer, text), torch.zeros(4, dtype=torch.int64)) + counts

    hooks.walk(model, texts, ["in", "attention"], see)
    return pd.DataFrame(
        [
            {
                "model": model.name,
                "layer": layer,
                "text": text,
                "n": int(counts[0]),
                "real": float(leading[layer].eigenvalues[0].real),
                **{name: float(counts[i] / counts[0]) for i, name in ((1, "grown"), (2, "shrunk"), (3, "overshot"))},
            }
            for (layer, text), counts in sorted(rows.items())
        ],
        columns=["model", "layer", "text", "n", "real", "grown", "shrunk", "overshot"],
    )
