"""The matrix of a pre-norm layer as its residual stream sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from companion import hooks
from companion.errors import CompanionError
from companion.layers import layer_matrix

__all__ = ["norm_scaled"]


@torch.no_grad()
def norm_scaled(model: Any, texts: Iterable[str]) -> list[Tensor]:
    r"""Return :math:`\frac{\sqrt d}{\lVert x\rVert} F \operatorname{diag}(g)` of every layer of a pre-norm network.

    There a layer adds :math:`F \operatorname{diag}(g)\, \mathrm{LN}(x)` to the stream, so relative to a stream of
    norm :math:`\lVert x\rVert` its step is the identity plus this matrix. It goes to zero as the stream grows, and the
    order "residual" with it to "real". A LayerNorm also removes the mean: then the matrix has the projector
    :math:`I - 11^\top / d` on its right, and the norm is that of the mean-free stream.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`; a pre-norm network.
    texts : iterable of str
        What the mean norm of each layer's stream is taken from; every token counts once.

    Returns
    -------
    list of Tensor, shape (d_model, d_model), float64
        For ``companion.trace(..., matrices=)``.

    Raises
    ------
    CompanionError
        If the norm stands behind the attention: there the layer matrix itself is the right one.
    TextError
        If there is no text, or one is empty.
    """
    if any(site.input_norm is None for site in model.sites):
        raise CompanionError(f"{model.name} is post-norm: its layer matrices need no scaling by the norm in front")
    total = [0.0] * len(model.sites)
    count = 0

    def see(_text: int, layer: int, _stage: str, x: Tensor) -> None:
        nonlocal count
        x = x.double()
        if isinstance(model.sites[layer].input_norm, nn.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        total[layer] += float(x.norm(dim=-1).sum())
        count += x.shape[0] * x.shape[1] if layer == 0 else 0

    hooks.walk(model, texts, ["in"], see)
    return [_scaled(site, norm / count) for site, norm in zip(model.sites, total, strict=True)]


def _scaled(site: Any, norm: float) -> Tensor:
    d = site.layer.d_model
    matrix = layer_matrix(site.layer)
    if site.layer.gain is not None:
        matrix = matrix * site.layer.gain.double()
    if isinstance(site.input_norm, nn.LayerNorm):
        matrix = matrix - matrix.mean(1, keepdim=True)
    return matrix * (d**0.5 / norm)
