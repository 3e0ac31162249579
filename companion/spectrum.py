"""Leading eigenpairs of a layer matrix, certified: it is established that nothing larger was missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
import torch
from numpy.typing import NDArray
from scipy.special import gammaln

from companion.errors import SpectrumError

__all__ = ["Order", "Spectrum", "chance_alignment", "random_subspaces", "spectrum"]

Order = Literal["residual", "modulus", "real"]
Real = NDArray[np.float64]
Complex = NDArray[np.complex128]

_KEYS: dict[str, Callable[[Complex], Real]] = {
    "residual": lambda values: np.abs(1 + values),
    "modulus": lambda values: np.abs(values),
    "real": lambda values: values.real,
}
_SMALL = 512  # up to this size LAPACK is as fast as anything that could be tried first
_EXTRA = 6  # pairs sought beyond the wanted ones, to widen the distance to the rest
_RESTARTS = 8  # of the Arnoldi iteration
_PROBES = 10
_SAFETY = 100 * np.sqrt(2 / np.pi)  # Lemma 4.1 of Halko, Martinsson, Tropp (2011) with failure 1e-20


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenpairs of a real square matrix, best first.

    Attributes
    ----------
    eigenvalues : ndarray of complex, shape (k,) or (k + 1,)
        Conjugate pairs are whole: one more than asked for where the k-th is half of a pair.
    vectors : ndarray of complex, shape (d, same number)
        Right eigenvectors of unit norm, as columns.
    residuals : ndarray, shape (same number,)
        ``||F v - lambda v||`` of each pair.
    order : {"residual", "modulus", "real"}
        The key that ranks them: ``abs(1 + lambda)``, ``abs(lambda)`` or ``Re lambda``.
    gap : float
        Key of the first minus key of the next that is not its conjugate; infinite where there is none.
    error : float
        Numerical error of the first key and of the next: rounding of size ``d eps ||F||``, times the
        eigenvalues' condition numbers within the span of the leading vectors.
    method : {"certified", "lapack"}
        "certified": a few pairs by Arnoldi iteration, and a bound on all others. "lapack": all of them.
    """

    eigenvalues: Complex
    vectors: Complex
    residuals: Real
    order: Order
    gap: float
    error: float
    method: Literal["certified", "lapack"]

    @property
    def leading(self) -> dict[str, Any]:
        r"""The first eigenvalue as an entry of a table: kind, real, imag, growth (:math:`|1 + \lambda|`), gap."""
        value = complex(self.eigenvalues[0])
        return {
            "kind": self.kind,
            "real": value.real,
            "imag": value.imag,
            "growth": abs(1 + value),
            "gap": self.gap,
        }

    @property
    def kind(self) -> Literal["real", "complex"]:
        """Whether the principal eigenvalue is real or one of a conjugate pair."""
        return "real" if self.eigenvalues[0].imag == 0 else "complex"

    @cached_property
    def basis(self) -> Real:
        """Orthonormal basis of the principal eigenspace: (d, 1) where real, (d, 2) where complex.

        Raises
        ------
        SpectrumError
            If the gap is below the numerical error, so that the eigenspace is not determined.
        """
        if not self.gap > self.error:
            raise SpectrumError(
                f"the gap {self.gap:.2e} between the first two eigenvalues ({self.order} order) is below the "
                f"numerical error {self.error:.2e}: the principal eigenspace is not determined. "
                "Use .eigenvalues, or the span of more .vectors"
            )
        v = self.vectors[:, 0]
        columns = v.real[:, None] if self.kind == "real" else np.column_stack([v.real, v.imag])
        basis, _ = np.linalg.qr(columns)
        largest = basis[np.abs(basis).argmax(axis=0), np.arange(basis.shape[1])]
        oriented: Real = basis * np.sign(largest)
        return oriented


def spectrum(F: torch.Tensor | Real, k: int = 2, order: Order = "residual") -> Spectrum:
    r"""Return the ``k`` leading eigenpairs of ``F``, none missed.

    For ``d`` above 512 a few leading pairs are found by Arnoldi iteration (ARPACK). With ``Q`` an
    orthonormal basis of their span, all other eigenvalues are those of
    :math:`B = (I - QQ^T) A (I - QQ^T)`, and :math:`\rho(B) \le \|B^m\|^{1/m}` is bounded with ten
    Gaussian probes: the bound fails with probability below 1e-20 for each m (Halko, Martinsson and Tropp,
    SIAM Review 2011, Lemma 4.1). The pairs are returned once the bound lies below the key of the last
    pair asked for, and of the one next to the first, which the gap needs. Where it does not get there in
    time, or for small matrices, LAPACK computes every pair.

    Parameters
    ----------
    F : Tensor or ndarray, shape (d, d)
        Real matrix; computed with in float64.
    k : int
        Number of pairs.
    order : {"residual", "modulus", "real"}
        Which eigenvalue leads: largest ``abs(1 + lambda)`` (the layer as it is, identity plus attention),
        ``abs(lambda)`` (the plain power method), or ``Re lambda`` (small F, continuous time).

    Returns
    -------
    Spectrum

    Raises
    ------
    SpectrumError
        If ``F`` is not a real square finite matrix, ``order`` is unknown, or ``k`` is not in 1..d.
    """
    matrix = _as_matrix(F)
    d = matrix.shape[0]
    if order not in _KEYS:
        raise SpectrumError(f"order={order!r} is unknown; use one of {', '.join(_KEYS)}")
    if not 1 <= k <= d:
        raise SpectrumError(f"k={k} pairs of a {d} x {d} matrix cannot be had; use 1 to {d}")
    if d > _SMALL and k < d // 16:
        found = _certified(matrix, k, order)
        if found is not None:
            return _assemble(matrix, *found, k, order, "certified")
    values, vectors = np.linalg.eig(matrix)
    rank = _ranking(values, order)
    best = rank[: max(_needed(values[rank], k) or d, k + _EXTRA)]
    return _assemble(matrix, values[best].astype(complex), vectors[:, best].astype(complex), k, order, "lapack")


def random_subspaces(d: int, dimension: int, count: int, seed: int) -> Real:
    """Return orthonormal bases of uniformly random subspaces, shape (count, d, dimension).

    The null against which alignment with an eigenspace of the same dimension is read.
    """
    draws = np.random.default_rng(seed).standard_normal((count, d, dimension))
    bases: Real = np.linalg.qr(draws)[0]
    return bases


def chance_alignment(d: int, dimension: int) -> float:
    r"""Return the mean alignment of a vector with a uniformly random subspace.

    :math:`E\|Px\| / \|x\| = \Gamma(\frac{r+1}{2}) \Gamma(\frac{d}{2}) / (\Gamma(\frac{r}{2}) \Gamma(\frac{d+1}{2}))`,
    the mean of the root of a Beta(r/2, (d-r)/2) variable.

    Parameters
    ----------
    d : int
        Dimension of the space.
    dimension : int
        Dimension r of the subspace, 1 to d.
    """
    if not 1 <= dimension <= d:
        raise SpectrumError(f"a subspace of dimension {dimension} does not fit into dimension {d}")
    terms = gammaln([(dimension + 1) / 2, d / 2, dimension / 2, (d + 1) / 2])
    return float(np.exp(terms @ [1, 1, -1, -1]))


def _as_matrix(F: torch.Tensor | Real) -> Real:
    array = F.detach().cpu().numpy() if isinstance(F, torch.Tensor) else np.asarray(F)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        raise SpectrumError(f"a matrix of shape {array.shape} has no spectrum; it must be square, (d, d)")
    if np.iscomplexobj(array):
        raise SpectrumError("the matrix is complex; a layer matrix W_O W_V is real")
    matrix: Real = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(matrix).all():
        raise SpectrumError("the matrix holds NaN or infinity; check the weights it was made from")
    return matrix


def _ranking(values: Complex, order: Order) -> NDArray[np.intp]:
    """Return indices, best key first; equal keys by real part, then the half of a pair with Im > 0 first."""
    return np.lexsort((-values.imag, -values.real, -_KEYS[order](values)))


def _whole(values: Complex, count: int) -> int:
    """Return ``count``, or one more where that would split a conjugate pair of the ranked ``values``."""
    splits = values[count - 1].imag > 0 and count < len(values)
    return count + 1 if splits else count


def _needed(values: Complex, k: int) -> int | None:
    """Return the number of ranked ``values`` to know: k, and the next after the first (for the gap), pairs whole."""
    count = max(k, 2 if values[0].imag == 0 else 3)
    return _whole(values, count) if count <= len(values) else None


def _assemble(
    F: Real, values: Complex, vectors: Complex, k: int, order: Order, method: Literal["certified", "lapack"]
) -> Spectrum:
    """Build the result from ranked pairs: those asked for, the next after the first, and some more.

    The further ones need no certificate: they only show how well the first are separated from them.
    """
    vectors = vectors / np.linalg.norm(vectors, axis=0)
    residuals = np.linalg.norm(F @ vectors - values * vectors, axis=0)
    keys = _KEYS[order](values)
    first = 1 if values[0].imag == 0 else 2
    gap = float(keys[0] - keys[first]) if len(keys) > first else float("inf")
    rounding = len(F) * np.finfo(float).eps * np.linalg.norm(F)
    error = float(rounding * _condition(vectors)[: first + 1].max() + residuals[: first + 1].max())
    count = _whole(values, k)
    return Spectrum(values[:count], vectors[:, :count], residuals[:count], order, gap, error, method)


def _condition(vectors: Complex) -> Real:
    """Condition number of each eigenvalue, as far as the other vectors of this set decide it.

    It is 1 / |y^H x| with y the dual vector of unit norm x; huge where two vectors nearly coincide.
    """
    left, singular, right = np.linalg.svd(vectors, full_matrices=False)
    if singular[-1] < np.finfo(float).eps:
        return np.full(vectors.shape[1], np.inf)
    condition: Real = np.linalg.norm((right.conj().T / singular) @ left.conj().T, axis=1)
    return condition


def _certified(F: Real, k: int, order: Order) -> tuple[Complex, Complex] | None:
    """Leading pairs by ARPACK with the certificate, or None where it cannot be had in time."""
    d = len(F)
    rng = np.random.default_rng(d)
    A = F + np.eye(d) if order == "residual" else F
    try:
        arnoldi: Any = scipy.sparse.linalg.eigs(
            A,
            k=k + _EXTRA,
            which="LR" if order == "real" else "LM",
            v0=rng.standard_normal(d),
            ncv=4 * (k + _EXTRA),
            maxiter=_RESTARTS,
            tol=0,
            rng=np.random.default_rng(0),
        )[1]
    except scipy.sparse.linalg.ArpackNoConvergence as partly:
        arnoldi = partly.eigenvectors  # those that did converge are enough where they stand clear
    except scipy.sparse.linalg.ArpackError:
        return None
    found: Complex = np.asarray(arnoldi, dtype=complex)
    if found.shape[1] < k:
        return None
    # A conjugate pair cut in half still spans both its dimensions: real and imaginary part.
    left, singular, _ = np.linalg.svd(np.hstack([found.real, found.imag]), full_matrices=False)
    Q: Real = left[:, singular > 1e-8 * singular[0]]
    T = Q.T @ (F @ Q)
    if np.linalg.norm(F @ Q - Q @ T) > d * np.finfo(float).eps * np.linalg.norm(F):
        return None
    parts = np.linalg.eig(T)
    values: Complex = parts[0].astype(complex)
    small: Complex = parts[1].astype(complex)
    rank = _ranking(values, order)
    values, small = values[rank], small[:, rank]
    count = _needed(values, k)
    if count is None:
        return None
    threshold = float(_KEYS[order](values)[count - 1])
    shift = _best_shift(F, Q, threshold, rng) if order == "real" else float(order == "residual")
    if order == "real":
        threshold += shift
    if not _all_others_below(F, Q, shift, threshold, rng):
        return None
    return values, Q @ small


def _all_others_below(F: Real, Q: Real, shift: float, threshold: float, rng: np.random.Generator) -> bool:
    """Establish that every eigenvalue outside span(Q) has ``abs(lambda + shift) < threshold``."""
    if threshold <= 0:
        return False
    W = rng.standard_normal((len(F), _PROBES))
    W -= Q @ (Q.T @ W)
    sizes = [0.0]  # W is kept near norm one; the logarithm of its true size after m steps is sizes[m]
    steps = max(60, len(F) // 10)
    for m in range(1, steps + 1):
        W = F @ W + shift * W
        W -= Q @ (Q.T @ W)
        largest = np.linalg.norm(W, axis=0).max()
        if largest == 0:
            return True
        W /= largest
        sizes.append(sizes[-1] + np.log(largest))
        if np.log(_SAFETY) + sizes[m] < m * np.log(threshold):
            return True
        if m % 16 == 0:  # hopeless? Then stop early: a wrong guess costs time, never truth
            growth = (sizes[m] - sizes[m // 2]) / (m - m // 2)
            if np.log(_SAFETY) + sizes[m] + (steps - m) * growth > steps * np.log(threshold):
                return False
    return False


def _best_shift(F: Real, Q: Real, threshold: float, rng: np.random.Generator) -> float:
    """Choose the shift s that makes ``abs(lambda + s)`` of the other eigenvalues smallest beside s + threshold.

    The others are looked at through their Ritz values in a short Krylov space; a bad choice costs the
    certificate, never its truth.
    """
    steps = 30
    basis = np.zeros((len(F), steps + 1))
    H = np.zeros((steps + 1, steps))
    w = rng.standard_normal(len(F))
    w -= Q @ (Q.T @ w)
    basis[:, 0] = w / np.linalg.norm(w)
    for j in range(steps):
        w = F @ basis[:, j]
        w -= Q @ (Q.T @ w)
        for _ in range(2):
            h = basis[:, : j + 1].T @ w
            H[: j + 1, j] += h
            w -= basis[:, : j + 1] @ h
        H[j + 1, j] = np.linalg.norm(w)
        if H[j + 1, j] < 1e-12 * np.linalg.norm(H[: j + 1, j]):
            break
        basis[:, j + 1] = w / H[j + 1, j]
    ritz = scipy.linalg.eigvals(H[: j + 1, : j + 1])
    shifts = max(0.0, -threshold) + np.linspace(0, 3 * np.abs(ritz).max() + 1e-300, 301)
    ratio = np.abs(ritz + shifts[:, None]).max(axis=1) / np.maximum(threshold + shifts, 1e-300)
    return float(shifts[ratio.argmin()])
