"""The paper's map: attention, residual sum and projection onto the unit sphere, without a feed-forward part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion.errors import LayerError
from companion.layers import Attention, AttentionLayer

__all__ = ["angles", "clusters", "consensus", "orbit", "plane_coordinates", "power_step"]


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
    unlike = {id(layer): layer for layer in layers}  # one that is applied again and again is cast once
    cast = {key: layer.to(dtype=x.dtype, device=x.device) for key, layer in unlike.items()}
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


def consensus(x: Tensor) -> Tensor:
    """Return the mean cosine over pairs of different tokens, 1 where all tokens have one direction.

    Parameters
    ----------
    x : Tensor, shape (..., n, d_model)
        At least two tokens, none of them zero.

    Returns
    -------
    Tensor, shape (...)
    """
    n = x.shape[-2]
    if n < 2:
        raise LayerError("consensus is between tokens; there is only one")
    directions = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (directions.sum(-2).square().sum(-1) - n) / (n * (n - 1))


def clusters(x: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Return how many different directions tokens have, 1 in consensus.

    Parameters
    ----------
    x : Tensor, shape (..., n, d_model)
        Tokens, none of them zero.
    tolerance : float
        Directions are one where their cosine is above 1 minus this. It should be far below the distance of
        clusters and above what tokens of one cluster still differ by, so that being one is transitive.

    Returns
    -------
    Tensor of int, shape (...)
    """
    directions = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    same = directions @ directions.mT > 1 - tolerance
    # Every member of a cluster of m adds 1 / m.
    return (1.0 / same.sum(-1)).sum(-1).round().long()


def plane_coordinates(x: Tensor, v: Tensor | NDArray[np.complex128]) -> Tensor:
    r"""Return coordinates of tokens in the basis (Re v, Im v) of a complex eigenvector's plane.

    In these coordinates the linear step :math:`I + F` turns by :math:`\arg(1 + \lambda)`, exactly; in
    others the angle varies from step to step unless Re v and Im v are orthogonal and of equal length.
    What tokens have outside the plane is dropped along the orthogonal projection.

    Parameters
    ----------
    x : Tensor, shape (..., d_model)
        Tokens.
    v : Tensor or ndarray of complex, shape (d_model,)
        Eigenvector, such as ``spectrum.vectors[:, 0]``.

    Returns
    -------
    Tensor, shape (..., 2)
    """
    vector = torch.as_tensor(v)
    frame = torch.stack([vector.real, vector.imag]).to(x)
    return x @ torch.linalg.pinv(frame)


def angles(coordinates: Tensor) -> Tensor:
    """Return the turn between successive states, shape (steps - 1, ...), radians in (-pi, pi].

    Parameters
    ----------
    coordinates : Tensor, shape (steps, ..., 2)
        From :func:`plane_coordinates`, one entry a step.
    """
    angle = torch.atan2(coordinates[..., 1], coordinates[..., 0])
    return torch.remainder(angle[1:] - angle[:-1] + torch.pi, 2 * torch.pi) - torch.pi
