"""Layers with a chosen spectrum: the random instances that statements are executed on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from companion.errors import LayerError
from companion.layers import AttentionLayer, Mask

__all__ = ["layer_with", "matrix_with", "sphere_layer"]


def matrix_with(leading: Sequence[complex], d: int, bulk: float = 0.5, shear: float = 0.0, seed: int = 0) -> Tensor:
    r"""Return a random matrix with the given eigenvalues beside a Ginibre bulk.

    Parameters
    ----------
    leading : sequence of complex
        Real eigenvalues, and one of each conjugate pair.
    d : int
        Dimension.
    bulk : float
        Spectral radius of the other eigenvalues (exactly).
    shear : float
        How far eigenvectors are from orthogonal: the change of basis is :math:`R (I + s G / \sqrt d)` with
        R orthogonal and G Gaussian.
    seed : int
        Of all that is random.

    Returns
    -------
    Tensor, shape (d, d), float64

    Raises
    ------
    LayerError
        If ``d`` is too small for the given eigenvalues.
    """
    rng = np.random.default_rng(seed)
    blocks = [
        [[v.real]] if not complex(v).imag else [[v.real, v.imag], [-v.imag, v.real]] for v in map(complex, leading)
    ]
    size = sum(map(len, blocks))
    if size > d:
        raise LayerError(f"{size} eigenvalues do not fit into d={d}")
    rest = rng.standard_normal((d - size, d - size))
    if size < d:
        rest *= bulk / np.abs(np.linalg.eigvals(rest)).max()
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    basis = basis @ (np.eye(d) + shear * rng.standard_normal((d, d)) / d**0.5)
    diagonal = scipy.linalg.block_diag(*map(np.array, blocks), rest) if blocks else rest
    return torch.tensor(basis @ diagonal @ np.linalg.inv(basis))


def layer_with(
    F: Tensor, n_heads: int = 1, mask: Mask = "full", window: int | None = None, seed: int = 0
) -> AttentionLayer:
    """Return a layer whose layer matrix is ``F``: random ``W_Q``, ``W_K`` and ``W_V``, and ``W_O = F W_V^-1``.

    Parameters
    ----------
    F : Tensor, shape (d, d)
        The layer matrix.
    n_heads : int
        Number of heads; it divides d.
    mask : {"full", "causal", "local"}
        As for :class:`AttentionLayer`, and ``window`` with it.
    seed : int
        Of the three random matrices, whose entries are Gaussian with variance 1 / d.
    """
    d = F.shape[0]
    generator = torch.Generator().manual_seed(seed)
    W_Q, W_K, W_V = (torch.randn(d, d, generator=generator, dtype=F.dtype) / d**0.5 for _ in range(3))
    return AttentionLayer(W_Q, W_K, W_V, F @ torch.linalg.inv(W_V), n_heads=n_heads, mask=mask, window=window)


def sphere_layer(
    gap: float, angle: float = 0.0, n_heads: int = 1, temperature: float = 1.0, mask: Mask = "full"
) -> AttentionLayer:
    r"""Return the layer of the book's interactive sphere: three dimensions, one number for each thing to change.

    :math:`I + F` is twice a rotation by ``angle`` in the first two coordinates and :math:`2 - \text{gap}` on the
    third; without an angle it is 2 on the first coordinate alone. Head h compares a token with others that are
    turned about :math:`(1, 1, 1)` by h of ``n_heads`` equal parts of a full turn, divides by the temperature, and
    moves by an equal share of F.

    Parameters
    ----------
    gap : float
        Spectral gap in the order "residual", 0 to 2.
    angle : float
        Argument of :math:`1 + \lambda_1`, in radians; 0 for a real leading eigenvalue.
    n_heads : int
        Number of heads.
    temperature : float
        Divides the logits.
    mask : {"full", "causal"}
        What a token sees.
    """
    eye = torch.eye(3, dtype=torch.float64)
    grown = (2 - gap) * eye
    if angle:
        cos, sin = np.cos(angle), np.sin(angle)
        grown[:2, :2] = 2 * torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
    else:
        grown[0, 0] = 2.0
    axis = np.ones(3) / 3**0.5
    turns = [Rotation.from_rotvec(2 * np.pi * h / n_heads * axis).as_matrix() for h in range(n_heads)]
    F = grown - eye
    return AttentionLayer(
        W_Q=torch.cat([eye] * n_heads),
        W_K=torch.cat([torch.tensor(turn, dtype=torch.float64) for turn in turns]),
        W_V=torch.cat([eye] * n_heads),
        W_O=torch.cat([F / n_heads] * n_heads, dim=1),
        n_heads=n_heads,
        scale=1 / temperature,
        mask=mask,
    )
