"""Which equilibria of the paper's map are stable, in closed form (theorems of ours, chapter Theory)."""

from __future__ import annotations

import cmath
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from torch import Tensor

from companion.dynamics import power_step
from companion.errors import LayerError
from companion.layers import AttentionLayer, Mask, head_matrices

__all__ = [
    "bipartite_radius",
    "head_affinity",
    "heads_bipartite_radius",
    "jacobian_radius",
    "polygon_radius",
    "rotation_angle",
    "stability_radius",
]

Eigenvalues = Sequence[complex] | NDArray[np.complex128]


def stability_radius(eigenvalues: Eigenvalues, k: int, n: int, mask: Mask = "full", window: int | None = None) -> float:
    r"""Return the spectral radius of the map's Jacobian at consensus on the k-th eigenvector.

    With all tokens at a unit eigenvector :math:`v_k` of F with real eigenvalue,

    .. math:: r_k = \max_{j \ne k,\ m \in M} \frac{|1 + \lambda_j / m|}{|1 + \lambda_k|},

    where M is {1, infinity} for full attention (n = 1: {1}), {1, n} under a causal mask, and
    {1, min(n, window)} under a local one: for any number of heads, any queries and keys, any temperature.
    Consensus there is locally exponentially stable if the radius is below 1 and unstable if it is above.

    Parameters
    ----------
    eigenvalues : sequence of complex, shape (d,)
        All eigenvalues of F.
    k : int
        Which of them belongs to the consensus.
    n : int
        Number of tokens.
    mask : {"full", "causal", "local"}
        What a token may see, and ``window`` with it.

    Returns
    -------
    float
        0 where d = 1: there is no direction to leave into.

    Raises
    ------
    LayerError
        If the eigenvalue is not real or 1 + lambda_k = 0, so that there is no such equilibrium, or k, n, mask
        or window make no sense.
    """
    lambda_k, others = _split(eigenvalues, k)
    if lambda_k == -1:
        raise LayerError("1 + lambda_k = 0: the layer sends v_k to zero, so there is no equilibrium there")
    if n < 1:
        raise LayerError(f"n={n} tokens; there must be at least one")
    if mask == "full":
        shares = [1.0] if n == 1 else [1.0, 0.0]
    elif mask == "causal":
        shares = [1.0, 1.0 / n]
    elif mask == "local" and window is not None and window >= 1:
        shares = [1.0, 1.0 / min(n, window)]
    else:
        raise LayerError(f"mask={mask!r} with window={window} is no mask; see AttentionLayer")
    return max((abs(1 + share * value) for share in shares for value in others), default=0.0) / abs(1 + lambda_k)


def bipartite_radius(eigenvalues: Eigenvalues, k: int, affinity: float, n_plus: int, n_minus: int) -> float:
    r"""Return the spectral radius of the Jacobian where tokens are split between +v_k and -v_k.

    One head, full softmax attention, p n tokens at :math:`+v_k` and q n at :math:`-v_k`. With
    :math:`a_\pm` the attention that a token pays to its own side, :math:`m_\pm = 2 a_\pm - 1`,
    :math:`D = \mathrm{diag}(1 + \lambda_k m_\pm)` and G the 2 x 2 matrix of attention between the sides, it is
    the largest of :math:`1 / D_\pm` (sides of two or more tokens) and :math:`\rho(D^{-1}(I + \lambda_j G))`
    over j other than k.

    Parameters
    ----------
    eigenvalues : sequence of complex, shape (d,)
        All eigenvalues of F.
    k : int
        Which of them belongs to the state.
    affinity : float
        :math:`b = s\, v_k^T W_Q^T W_K v_k\, r^2`, with s the scale of logits and r the token norm that they
        see; see :func:`head_affinity`.
    n_plus, n_minus : int
        Tokens on either side, at least one each.

    Returns
    -------
    float
        Below 1: locally exponentially stable. Above: unstable. 0 where d = 1.

    Raises
    ------
    LayerError
        If the eigenvalue is not real, an entry of D is not positive (the state is not fixed then), or a side
        is empty.
    """
    lambda_k, others = _split(eigenvalues, k)
    own = [float(share[0]) for share in _own_shares(np.array([affinity]), n_plus, n_minus)]
    D = np.array([1 + lambda_k * (2 * a - 1) for a in own])
    if not (D > 0).all():
        raise LayerError(
            f"1 + lambda_k m = {D[0]:.3g} and {D[1]:.3g} on the two sides; where one is not positive its tokens "
            "change sides, and the state is no fixed point"
        )
    if not len(others):
        return 0.0
    G = np.array([[own[0], 1 - own[0]], [1 - own[1], own[1]]])
    spread = [1 / D[side] for side, count in enumerate((n_plus, n_minus)) if count > 1]
    coupled = [abs(np.linalg.eigvals((np.eye(2) + value * G) / D[:, None])).max() for value in others]
    return float(max(spread + coupled))


def heads_bipartite_radius(
    layer: AttentionLayer, direction: Tensor, n_plus: int, n_minus: int, radius: float = 1.0
) -> float:
    r"""Return the same for a layer of any number of heads, under full softmax attention.

    The state is fixed where the direction is an eigenvector of every :math:`F_h = O_h V_h`, with eigenvalues
    :math:`\lambda^h`: then :math:`D_\pm = 1 + \sum_h \lambda^h (2 a^h_\pm - 1)`, and the spectral radius is the
    largest of :math:`1 / D_\pm` and that of :math:`D^{-1}(I + \sum_h G_h \otimes (I - v v^T) F_h)` on pairs of
    vectors orthogonal to v.

    Parameters
    ----------
    layer : AttentionLayer
        The layer; its mask must be full.
    direction : Tensor, shape (d_model,)
        The direction v; its length does not matter.
    n_plus, n_minus : int
        Tokens at +v and -v, at least one each.
    radius : float
        Token norm that the logits see.

    Returns
    -------
    float
        Below 1: locally exponentially stable. Above: unstable. 0 where d_model = 1.

    Raises
    ------
    LayerError
        If the mask is not full, a side is empty, the direction is no eigenvector of some head (the state is no
        fixed point then), or an entry of D is not positive.
    """
    if layer.mask != "full":
        raise LayerError(f"mask={layer.mask!r}; the theorem on two sides is for full attention")
    b = head_affinity(layer, direction, radius).double().numpy()
    v = (direction / direction.norm()).double().numpy()
    heads = [F_h.numpy() for F_h in head_matrices(layer)]
    rest = np.eye(len(v)) - np.outer(v, v)
    for index, F_h in enumerate(heads):
        aside = float(np.linalg.norm(rest @ F_h @ v))
        if aside > 1e-8 * max(1.0, float(np.linalg.norm(F_h, 2))):
            raise LayerError(
                f"the direction is no eigenvector of head {index} (it is sent {aside:.2g} aside), so tokens at +v and "
                "-v do not stay there"
            )
    own = _own_shares(b, n_plus, n_minus)
    values = np.array([v @ F_h @ v for F_h in heads])
    D = np.array([1 + float(values @ (2 * a - 1)) for a in own])
    if not (D > 0).all():
        raise LayerError(
            f"D = {D[0]:.3g} and {D[1]:.3g} on the two sides; where one is not positive tokens change sides"
        )
    if len(v) == 1:
        return 0.0
    coupling = np.eye(2 * len(v))
    for index, F_h in enumerate(heads):
        plus, minus = own[0][index], own[1][index]
        coupling = coupling + np.kron(np.array([[plus, 1 - plus], [1 - minus, minus]]), F_h)
    step = np.kron(np.diag(1 / D), rest) @ coupling @ np.kron(np.eye(2), rest)
    spread = [1 / D[side] for side, count in enumerate((n_plus, n_minus)) if count > 1]
    return float(max([*spread, np.abs(np.linalg.eigvals(step)).max()]))


def polygon_radius(eigenvalue: float, n: int, affinity: float, others: Eigenvalues = ()) -> float:
    r"""Return the spectral radius of the Jacobian where n tokens are the corners of a regular polygon.

    One head, full softmax attention, :math:`F = \lambda I` and :math:`s\,Q^T K r^2 = b I` on a plane, and on its
    complement F with the eigenvalues ``others``. With angles :math:`\varphi_k = 2 \pi k / n`, weights
    :math:`w_k \propto e^{b \cos\varphi_k}`, :math:`c = \sum_k w_k \cos\varphi_k` and
    :math:`g_k = w_k (\cos\varphi_k - b \sin^2\varphi_k)`, the Jacobian's eigenvalues are 0 (n times),

    .. math:: 1 + \frac{\lambda}{1 + \lambda c} \sum_k g_k (\cos m\varphi_k - 1) \quad (0 \le m < n), \qquad
       \frac{1 + \lambda_j \sum_k w_k \cos m\varphi_k}{1 + \lambda c}.

    The first with m = 0 is a turn of the whole polygon, along which the state is neutral; it is left out.

    Parameters
    ----------
    eigenvalue : float
        :math:`\lambda`, that of the plane.
    n : int
        Number of tokens, at least 3.
    affinity : float
        b.
    others : sequence of complex
        All other eigenvalues of F.

    Returns
    -------
    float
        Below 1: stable up to a turn of the whole. Above: unstable.

    Raises
    ------
    LayerError
        If n is below 3, or 1 + lambda c is not positive (the state is no fixed point then).
    """
    if n < 3 or not np.isfinite([eigenvalue, affinity]).all():
        raise LayerError(f"n={n}, eigenvalue={eigenvalue}, affinity={affinity}; a polygon needs n >= 3, finite values")
    angle = 2 * np.pi * np.arange(n) / n
    w = softmax(affinity * np.cos(angle))
    growth = 1 + eigenvalue * float(w @ np.cos(angle))
    if growth <= 0:
        raise LayerError(f"1 + lambda c = {growth:.3g}; where it is not positive the corners change places")
    modes = np.cos(np.outer(np.arange(n), angle))  # (m, k)
    g = w * (np.cos(angle) - affinity * np.sin(angle) ** 2)
    within = 1 + eigenvalue / growth * ((modes[1:] - 1) @ g)
    outside = (1 + np.outer(np.asarray(others, dtype=complex), modes @ w)) / growth
    return float(np.abs(np.concatenate([within, outside.ravel()])).max())


def jacobian_radius(x: Tensor, layer: AttentionLayer, radius: float = 1.0) -> float:
    """Return the spectral radius of the map's Jacobian at a state, by autograd: what the closed forms are checked by.

    Parameters
    ----------
    x : Tensor, shape (n, d_model)
        Unit tokens, float64 for a check worth its name.
    layer : AttentionLayer
        The layer, with softmax attention.
    radius : float
        As for :func:`companion.power_step`.
    """
    jacobian = torch.autograd.functional.jacobian(lambda y: power_step(y, layer, radius=radius), x)
    return float(torch.linalg.eigvals(jacobian.reshape(x.numel(), x.numel())).abs().max())


def rotation_angle(eigenvalue: complex) -> float:
    r"""Return the turn a layer, :math:`\arg(1 + \lambda)`, of a consensus in the plane of a complex pair.

    In radians, in the coordinates (Re v, Im v); see :func:`companion.plane_coordinates`.

    Raises
    ------
    LayerError
        If 1 + lambda = 0: the layer sends the plane to zero.
    """
    if 1 + eigenvalue == 0:
        raise LayerError("1 + lambda = 0: the layer sends this eigenvector to zero, so nothing turns")
    return cmath.phase(1 + eigenvalue)


def head_affinity(layer: AttentionLayer, direction: Tensor, radius: float = 1.0) -> Tensor:
    r"""Return each head's query-key product of a direction with itself, :math:`b_h`.

    :math:`b_h = s\, (W_Q^h v) \cdot (W_K^h v)\, r^2`: how much more attention two tokens at ``v`` pay to each
    other than a token at ``v`` and one at ``-v`` do (the logits are b and -b). Biases are left out.

    Parameters
    ----------
    layer : AttentionLayer
        The layer, trained or not.
    direction : Tensor, shape (d_model,)
        Any non-zero length; its direction is used.
    radius : float
        Token norm r that the logits see.

    Returns
    -------
    Tensor, shape (n_heads,)

    Raises
    ------
    LayerError
        If the direction does not fit or is zero, or the layer rotates queries and keys by position, where
        the product depends on the distance between tokens.
    """
    if layer.rotate is not None:
        raise LayerError("this layer turns queries and keys by position: their product has no single value")
    if direction.shape != (layer.d_model,) or not bool(direction.any()) or not bool(direction.isfinite().all()):
        raise LayerError(f"the direction must be {layer.d_model} finite numbers, not all zero")
    v = (direction / direction.norm()).to(layer.W_Q)
    q, k = ((W @ v).reshape(layer.n_heads, -1) for W in (layer.W_Q, layer.W_K))
    return layer.scale * (q * k).sum(-1) * radius**2


def _own_shares(b: NDArray[np.float64], n_plus: int, n_minus: int) -> list[NDArray[np.float64]]:
    """Attention of a token on either side to its own, head by head: p e^b / (p e^b + q e^-b) without overflow."""
    if n_plus < 1 or n_minus < 1:
        raise LayerError(f"{n_plus} and {n_minus} tokens; a bipartite state needs at least one on either side")
    return [expit(2 * b - np.log(ratio)) for ratio in (n_minus / n_plus, n_plus / n_minus)]


def _split(eigenvalues: Eigenvalues, k: int) -> tuple[float, NDArray[np.complex128]]:
    """Return the k-th eigenvalue, which must be real, and all others."""
    values = np.asarray(torch.as_tensor(eigenvalues).cpu().numpy() if isinstance(eigenvalues, Tensor) else eigenvalues)
    values = values.astype(complex)
    if values.ndim != 1 or not 0 <= k < len(values) or not np.isfinite(values).all():
        raise LayerError(f"k={k} with eigenvalues of shape {values.shape}; give all of F's, finite, and 0 <= k < d")
    if values[k].imag != 0:
        raise LayerError(f"lambda_k = {values[k]:.3g} is complex: its plane holds a limit cycle, not an equilibrium")
    return float(values[k].real), np.delete(values, k)
