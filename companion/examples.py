"""Layers with a chosen spectrum: the random instances that statements are executed on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from companion.errors import LayerError
from companion.layers import AttentionLayer, Mask

__all__ = ["layer_with", "matrix_with"]


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
