"""The paper's map: attention, residual sum and projection onto the unit sphere, without a feed-forward part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from companion.errors import LayerError
from companion.layers import Attention, AttentionLayer

__all__ = ["orbit", "power_step"]


def power_step(
    x: Tensor,
    layer: AttentionLayer,
    attention: Attention = "softmax",
    bias: bool = False,
    radius: float = 1.0,
) -> Tensor:
    r"""Apply one layer of the paper's map to unit tokens.

    Token i becomes :math:`N(r x_i + \sum_h O_h \sum_j A^h_{ij} V_h r x_j)` with :math:`N(y) = y / \|y\|`
    (Li and Altafini, arXiv:2605.25619: residual connection, all heads, no feed-forward network, LayerNorm
    replaced by L2 normalisation).

    Parameters
    ----------
    x : Tensor, shape (..., n, d_model)
        Tokens of unit norm; leading dimensions are separate texts.
    layer : AttentionLayer
        Its tensors are used in the dtype and on the device of ``x``.
    attention : {"softmax", "uniform"} or Tensor, shape (..., n_heads, n, n)
        See :meth:`AttentionLayer.weights`.
    bias : bool
        Whether the layer's biases are used; the paper's map has none.
    radius : float
        The token norm r that query-key products and biases see. Everything else is scale-free. Tokens
        after a LayerNorm have norm about ``sqrt(d_model)``; with radius 1 softmax is nearly uniform.

    Returns
    -------
    Tensor, shape (..., n, d_model)
        Unit tokens, differentiable with respect to ``x``.

    Raises
    ------
    LayerError
        If the shape of ``x`` does not fit, or the layer sends a token to zero (1 + lambda = 0 there),
        so that it has no direction.
    """
    _check_tokens(x, layer)
    layer = layer.to(dtype=x.dtype, device=x.device)
    scaled = radius * x
    # What is left of a token after complete cancellation is rounding: it has no direction either.
    floor = torch.finfo(x.dtype).eps * radius * x.detach().norm(dim=-1, keepdim=True)
    return _unit(scaled + layer.attend(scaled, attention, bias), floor, "the layer sends a token to zero")


def orbit(
    x: Tensor,
    layers: Sequence[AttentionLayer],
    attention: Attention = "softmax",
    bias: bool = False,
    radius: float = 1.0,
) -> Tensor:
    """Apply layers in turn and return every state on the way.

    Parameters
    ----------
    x : Tensor, shape (..., n, d_model)
        Tokens of any non-zero norm; the orbit starts at their directions.
    layers : sequence of AttentionLayer
        One layer a step; ``[layer] * 50`` iterates one.
    attention, bias, radius
        As in :func:`power_step`.

    Returns
    -------
    Tensor, shape (len(layers) + 1, ..., n, d_model)
        Unit tokens; entry 0 is the start.

    Raises
    ------
    LayerError
        As :func:`power_step`, or if a start token is zero.
    """
    if not layers:
        raise LayerError("layers is empty; an orbit needs at least one layer")
    _check_tokens(x, layers[0])
    cast = {id(layer): layer.to(dtype=x.dtype, device=x.device) for layer in layers}
    states = [_unit(x, torch.zeros(()), "a start token is zero")]
    for layer in layers:
        states.append(power_step(states[-1], cast[id(layer)], attention, bias, radius))
    return torch.stack(states)


def _unit(y: Tensor, floor: Tensor, what: str) -> Tensor:
    norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
    if not bool(((norm > floor.to(norm)) & norm.isfinite()).all()):
        raise LayerError(f"{what} or to a value that is not finite, so it has no direction")
    return y / norm


def _check_tokens(x: Tensor, layer: AttentionLayer) -> None:
    if x.ndim < 2 or x.shape[-1] != layer.d_model or x.shape[-2] < 1:
        raise LayerError(f"tokens have shape {tuple(x.shape)}; this layer needs (..., n, {layer.d_model}), n >= 1")
    if not x.is_floating_point():
        raise LayerError(f"tokens have dtype {x.dtype}; the map needs a floating-point dtype")
