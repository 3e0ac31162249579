"""Readings for steering: vectors on the concatenated head outputs that every token reads as positive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from companion import hooks
from companion.errors import SteeringError
from companion.layers import check_layer
from companion.steering import unit

__all__ = ["head_outputs", "reading", "widest"]


def reading(
    model: Any,
    texts: Iterable[str],
    layer: int = -1,
    kind: Literal["mean", "widest"] = "mean",
    direction: Tensor | None = None,
) -> Tensor:
    r"""Return a vector ``p`` on the head outputs for :func:`companion.steered`, made from calibration texts.

    A steered token moves to the side of ``d`` that the sign of :math:`p \cdot z_i` says, for its concatenated head
    outputs :math:`z_i`. Some ``p`` reads all of them as positive if and only if the origin is not in their convex
    hull (Gordan 1873).

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        Calibration texts; every token counts once.
    layer : int
        Index of the layer, negative from the end.
    kind : {"mean", "widest"}
        The mean :math:`\bar z`, which may or may not read every token as positive; or the one whose smallest
        cosine with a token's :math:`z_i` is largest, if it is positive at all.
    direction : Tensor, shape (d_model,), or None
        For ``"widest"``: also read :math:`W_V d` as positive, so that ``d`` itself, seen by the layer, is
        reinforced: the edit then adds a positive eigenvalue.

    Returns
    -------
    Tensor, shape (n_heads * d_value,), float64
        Scaled so that the average calibration token reads 1: a strength of alpha adds alpha d to it.

    Raises
    ------
    SteeringError
        If no reading is positive for all tokens (``"widest"``), or the kind is unknown.
    TextError
        If there is no text, or one is empty.
    """
    index = check_layer(layer, len(model.layers))
    if kind not in ("mean", "widest"):
        raise SteeringError(f"kind={kind!r} is unknown; use 'mean' or 'widest'")
    if kind == "mean":
        mean = hooks.mean(model, texts, "heads", index)
        return mean / mean.square().sum()
    z = head_outputs(model, texts, index)
    rows = z
    if direction is not None:
        target = model.layers[index]
        seen = target.W_V.detach().cpu().double() @ unit(direction, target.d_model)
        rows = torch.cat([z, seen[None]])
    found = widest(rows.numpy())
    if found is None:
        raise SteeringError(
            f"layer {index} has no reading that is positive for all {len(z):,} tokens"
            f"{'' if direction is None else ' and for the direction'}: the origin lies in the convex hull of their "
            "head outputs; use kind='mean', which sends most of them to one side"
        )
    p = torch.from_numpy(found)
    return p / (z @ p).mean()


def head_outputs(model: Any, texts: Iterable[str], layer: int) -> Tensor:
    """Return every token's concatenated head outputs in one layer, shape (tokens, n_heads * d_value), float64."""
    index = check_layer(layer, len(model.layers))
    found: list[Tensor] = []

    def see(_text: int, at: int, _stage: str, z: Tensor) -> None:
        if at == index:
            found.append(z.flatten(0, 1).double().cpu())

    hooks.walk(model, texts, ["heads"], see)
    return torch.cat(found)


def widest(rows: NDArray[np.float64], tolerance: float = 1e-6) -> NDArray[np.float64] | None:
    r"""Return the unit vector whose smallest cosine with the rows is largest, or None where none is positive.

    With rows of unit length this is the shortest ``p`` with :math:`p \cdot z_i \ge 1` for all of them, a least-distance
    problem that non-negative least squares solves through its dual: the point of the convex hull that is nearest to
    the origin (Lawson and Hanson 1974, chapter 23).

    Parameters
    ----------
    rows : array, shape (n, m)
        None of them zero.
    tolerance : float
        Smallest cosine that counts as positive.
    """
    z = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    A = np.vstack([z.T, np.ones(len(z))])
    b = np.append(np.zeros(z.shape[1]), 1.0)
    u, _ = nnls(A, b, maxiter=30 * max(A.shape))
    p = b - A @ u
    length = float(np.linalg.norm(p[:-1]))
    # p is zero if weights of sum one average the rows to zero: then the origin is in their hull.
    if length == 0:
        return None
    direction: NDArray[np.float64] = -p[:-1] / length
    return direction if float((z @ direction).min()) > tolerance else None
