"""`companion.spectrum` with k=2 against `numpy.linalg.eig`, which computes every pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import companion

Matrix = NDArray[np.float64]


def clear(d: int, rng: np.random.Generator) -> Matrix:
    """Two real pairs whose keys stand 20 and 30 % clear of a Ginibre bulk, in the residual order."""
    F = np.zeros((d, d))
    F[2:, 2:] = ginibre(d - 2, rng)
    radius = 2.0  # of abs(1 + lambda) over the bulk's unit disc
    F[0, 0], F[1, 1] = 1.3 * radius - 1, 1.2 * radius - 1
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    turned: Matrix = basis @ F @ basis.T
    return turned


def ginibre(d: int, rng: np.random.Generator) -> Matrix:
    """Independent Gaussian entries: a crowded edge, where no fast method can be certified."""
    return rng.standard_normal((d, d)) / d**0.5


def product(d: int, rng: np.random.Generator) -> Matrix:
    """Product of two Gaussian matrices: what F is before any training."""
    factors: Matrix = ginibre(d, rng) @ ginibre(d, rng)
    return factors


CASES: list[tuple[int, str, Callable[[int, np.random.Generator], Matrix]]] = [
    *[(d, "two pairs 20 % clear", clear) for d in (768, 1024, 2048, 4096)],
    *[(d, "Ginibre", ginibre) for d in (768, 1024, 2048, 4096)],
    *[(d, "product of Gaussians", product) for d in (768, 1024, 2048)],
]


def measure(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield one row a case: median times, their ratio, the way taken, and the largest difference in keys."""
    for d, name, make in CASES:
        yield _row(d, name, make(d, np.random.default_rng(d)), repeats)
    for index, layer in enumerate(companion.load("minilm").layers):
        yield _row(layer.d_model, f"MiniLM layer {index} (trained)", layer.F.numpy(), repeats)


def _row(d: int, name: str, F: Matrix, repeats: int) -> dict[str, Any]:
    ours, lapack = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        found = companion.spectrum(F, k=2)
        middle = time.perf_counter()
        values, _ = np.linalg.eig(F)
        ours.append(middle - start)
        lapack.append(time.perf_counter() - middle)
    keys = np.sort(abs(1 + values))[::-1][: len(found.eigenvalues)]
    return {
        "d": d,
        "matrix": name,
        "method": found.method,
        "seconds": float(np.median(ours)),
        "seconds_numpy_eig": float(np.median(lapack)),
        "times_as_fast": float(np.median(np.array(lapack) / np.array(ours))),
        "largest_difference": float(abs(abs(1 + found.eigenvalues) - keys).max()),
        "repeats": repeats,
    }
