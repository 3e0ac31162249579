"""Where the map goes and how fast: limits with biases and norms, layers needed, the largest tilt (chapter Theory)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from companion.errors import LayerError
from companion.layers import AttentionLayer, head_matrices

__all__ = ["affine_limit", "layers_to_align", "tilt_bound"]


def affine_limit(A: NDArray[np.float64] | Tensor, c: NDArray[np.float64] | Tensor) -> tuple[NDArray[np.float64], float]:
    r"""Return the fixed point of :math:`x \mapsto N(A x + c)` on the branch that belongs to the largest eigenvalue.

    It is :math:`x = (s I - A)^{-1} c` with s larger than the spectral radius :math:`\rho(A)` and
    :math:`\|x\| = 1`, so that :math:`A x + c = s x`. With A = I + F and c = (W_O b_V + b_O) / r it is where equal
    tokens of norm r can stay in a layer with biases; as c goes to zero it goes to :math:`\pm v_1`, on the side
    to which c points.

    Parameters
    ----------
    A : array, shape (d, d)
        The linear part.
    c : array, shape (d,)
        The constant part, not zero.

    Returns
    -------
    x : ndarray, shape (d,)
        The fixed point, of unit length.
    s : float
        The length of :math:`A x + c`.

    Raises
    ------
    LayerError
        If shapes do not fit, c is zero, or no such s exists: where the eigenvalue of largest modulus is not
        real and positive, or c has no component along its eigenvector, c may be too short.
    """
    A, c = (np.asarray(torch.as_tensor(value).detach().cpu(), dtype=np.float64) for value in (A, c))
    if A.ndim != 2 or A.shape[0] != A.shape[1] or c.shape != A.shape[:1]:
        raise LayerError(f"A has shape {A.shape} and c {c.shape}; they must be (d, d) and (d,)")
    if not np.isfinite(A).all() or not np.isfinite(c).all() or not c.any():
        raise LayerError("A and c must be finite, and c not zero; without a constant part the limit is an eigenvector")
    identity = np.eye(len(c))

    def excess(s: float) -> float:
        return float(np.linalg.norm(np.linalg.solve(s * identity - A, c))) - 1.0

    radius = float(np.abs(np.linalg.eigvals(A)).max())
    # Beyond ||A|| + ||c|| the solution is shorter than one.
    low, high = radius * (1 + 1e-9) + 1e-12, float(np.linalg.norm(A, 2) + np.linalg.norm(c)) * (1 + 1e-9)
    if low >= high or excess(low) <= 0:
        raise LayerError(
            f"no fixed point with s above the spectral radius {radius:.3g}: the leading eigenvalue is not real and "
            "positive, or c has no part along its eigenvector"
        )
    s = float(brentq(excess, low, high, xtol=1e-14, rtol=8.9e-16, maxiter=500))
    x = np.linalg.solve(s * identity - A, c)
    return x / np.linalg.norm(x), s


def layers_to_align(eigenvalues: Sequence[complex] | NDArray[np.complex128], n: int = 1, gamma: float = 0.99) -> float:
    r"""Return how many layers random tokens take to reach alignment gamma with the principal eigenspace.

    The estimate is the t at which

    .. math:: \sum_{j > 1} \left|\frac{1 + \lambda_j}{1 + \lambda_1}\right|^{2t}
       + (n - 1)(d - 1) \, |1 + \lambda_1|^{-2t} = \tan^2\theta, \qquad \cos\theta = \gamma,

    the expected square of the tangent where I + F is normal, attention is uniform and n random tokens start in
    dimension d. The first sum is the mean over tokens, on its way along the consensus set (all there is for
    n = 1); the second part is what tokens differ by, which no eigenvalue of F acts on. A conjugate of the first
    eigenvalue belongs to the principal eigenspace and is left out.

    Parameters
    ----------
    eigenvalues : sequence of complex, shape (d,)
        All eigenvalues of F.
    n : int
        Number of tokens; 1 for tokens that are equal.
    gamma : float
        Alignment to reach, in (0, 1).

    Returns
    -------
    float
        Number of layers, not rounded; infinite where another eigenvalue ties with the first, or tokens never
        come together because :math:`|1 + \lambda_1| \le 1`; 0 where chance reaches gamma.

    Raises
    ------
    LayerError
        If an argument is out of range.
    """
    values = np.asarray(eigenvalues, dtype=complex)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or n < 1 or not 0 < gamma < 1:
        raise LayerError(
            f"eigenvalues of shape {values.shape}, n={n}, gamma={gamma}; needed are all of F's, finite, n >= 1 and "
            "0 < gamma < 1"
        )
    growth = np.abs(1 + values)
    first = int(growth.argmax())
    if growth[first] == 0:
        return math.inf  # the layer sends every token to zero
    conjugate = np.isclose(values, values[first].conj(), rtol=1e-9, atol=1e-12) & (values[first].imag != 0)
    kept = ~conjugate
    kept[first] = False
    ratios = growth[kept] / growth[first]
    if n > 1:
        # What tokens differ by shrinks by the first eigenvalue alone, in every direction outside its eigenspace.
        ratios = np.append(ratios, np.full((n - 1) * len(ratios), 1 / growth[first]))
    target = (1 - gamma**2) / gamma**2

    def excess(t: float) -> float:
        return float((ratios ** (2 * t)).sum()) - target

    if not len(ratios) or excess(0.0) <= 0:
        return 0.0
    if ratios.max() >= 1:
        return math.inf
    end = 1.0
    while excess(end) > 0:
        end *= 2
    return float(brentq(excess, 0.0, end))


def tilt_bound(layer: AttentionLayer) -> float:
    r"""Return the largest angle, in radians, by which one layer of the map can turn any token.

    Whatever attention does, what it adds to a unit token is at most :math:`B = \sum_h \|O_h V_h\|_2` long, since
    a convex combination of unit tokens is not longer than one. So the turn is at most :math:`\arcsin B`, and
    there is no bound (:math:`\pi` is returned) where B is 1 or more.
    """
    B = sum(float(torch.linalg.matrix_norm(F_h, 2)) for F_h in head_matrices(layer))
    return math.asin(B) if B < 1 else math.pi
