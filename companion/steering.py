"""Rank-1 edits of an output matrix that align every token with a chosen direction (claim C10)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from companion.errors import SteeringError
from companion.layers import AttentionLayer, check_layer

__all__ = ["Edit", "applied", "paper_reading", "planned", "steered", "unit"]


_CARRIED = 1e-3  # of a direction, that float32 values may fail to carry without a word


class Edit(NamedTuple):
    """A rank-1 change of one output matrix, ``W_O + column row^T``.

    Attributes
    ----------
    layer : int
        Index from the front.
    column : Tensor, shape (d_model,)
        Strength times unit direction, float64.
    row : Tensor, shape (n_heads * d_value,)
        The reading, float64.
    """

    layer: int
    column: Tensor
    row: Tensor


class _Edits:
    """The original of one matrix, and the edits that are in force on it.

    The matrix is always the original plus the edits still in force, added in the order in which they came.
    So an edit that ends takes nothing else with it, in whatever order blocks are left, and the last one to
    end leaves the original's bits.
    """

    def __init__(self, W: Tensor) -> None:
        self.original = W.clone()
        self.active: list[tuple[object, Edit]] = []

    def total(self) -> Tensor:
        W = self.original
        for _, edit in self.active:
            W = _plus(W, edit)
        return W


_edits: dict[int, _Edits] = {}  # address of a matrix with edits in force -> these edits


@contextmanager
def steered(
    model: Any, direction: Tensor, strength: float, layer: int = -1, reading: Tensor | None = None
) -> Iterator[None]:
    r"""Steer a layer while the block runs: :math:`O' = O + \alpha\, d\, p^T`, in place, and always restored.

    Without ``reading``, :math:`p` solves :math:`V^T p = d`, the paper's choice: the layer matrix becomes
    :math:`F' = F + \alpha d d^T`, whose principal eigenvector tends to ``d`` as the strength grows. Tokens
    then land on ``d`` or on ``-d``, as :math:`p \cdot z_i` is positive or negative for their concatenated
    head outputs :math:`z_i`. Where layers share weights, all of them are edited.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    direction : Tensor, shape (d_model,)
        Any non-zero length; its direction ``d`` is used.
    strength : float
        :math:`\alpha \ge 0`.
    layer : int
        Index of the layer, negative from the end.
    reading : Tensor, shape (n_heads * d_value,), or None
        Vector ``p`` on the concatenated head outputs, such as :func:`reading` finds.

    Raises
    ------
    SteeringError
        If direction or reading have the wrong size, are zero or not finite, or the strength is negative,
        not finite, or more than the weights' dtype holds. Nothing has changed then.
    LayerError
        If there is no such layer.

    Examples
    --------
    >>> with companion.steered(model, direction, strength=100.0):
    ...     steered_states = model.states("any text", "attention")
    """
    edit = planned(model, direction, strength, layer, reading)
    W = model.layers[edit.layer].W_O
    edits = _edits.get(W.data_ptr()) or _Edits(W)
    edited = applied(edits.total(), edit, strength)
    mine = object()
    try:
        _edits[W.data_ptr()] = edits
        edits.active.append((mine, edit))
        _write(W, edited)
        del edited  # the block may be long, and this is as large as the weights
        yield
    finally:
        edits.active = [one for one in edits.active if one[0] is not mine]
        _write(W, edits.total())
        if not edits.active:
            _edits.pop(W.data_ptr(), None)


def planned(model: Any, direction: Tensor, strength: float, layer: int = -1, reading: Tensor | None = None) -> Edit:
    """Return the edit that :func:`steered` makes, after the same checks."""
    index = check_layer(layer, len(model.layers))
    target = model.layers[index]
    d = unit(direction, target.d_model)
    if not 0 <= strength < float("inf"):
        raise SteeringError(
            f"strength={strength} must be a finite number, zero or more; turn the direction round to go back"
        )
    p = paper_reading(target, d) if reading is None else _vector(reading, target.W_O.shape[1], "reading")
    return Edit(index, strength * d, p)


def applied(W: Tensor, edit: Edit, strength: float) -> Tensor:
    """Return a matrix with an edit of that strength added, or raise :class:`SteeringError` if its dtype overflows."""
    edited = _plus(W, edit)
    if not bool(torch.isfinite(edited).all()):
        raise SteeringError(f"strength={strength} overflows weights of dtype {W.dtype}; use less, or float32 weights")
    return edited


@torch.no_grad()
def _plus(W: Tensor, edit: Edit) -> Tensor:
    return torch.addr(W, edit.column.to(W), edit.row.to(W))


def paper_reading(layer: AttentionLayer, d: Tensor) -> Tensor:
    """Return the paper's ``p`` with ``W_V^T p = d``, shape (n_heads * d_value,), float64.

    The least-squares solution of least norm, where ``W_V`` is not square or is singular; a warning says how much
    of ``d`` the values cannot carry then.
    """
    W_V = layer.W_V.detach().T.cpu().double()
    d = d.detach().cpu().double()
    solution: Tensor = torch.linalg.lstsq(W_V, d[:, None], driver="gelsd").solution[:, 0]
    residual = float((W_V @ solution - d).norm() / d.norm())
    if residual > _CARRIED:
        warnings.warn(
            f"the values of this layer do not carry {residual:.0%} of the direction (|W_V^T p - d| / |d|): p is the "
            "least-squares solution; a reading on the head outputs (companion.reading) does not need one",
            stacklevel=2,
        )
    return solution


def unit(direction: Tensor, size: int) -> Tensor:
    """Return a direction of unit length, float64, on the CPU.

    Raises
    ------
    SteeringError
        If it has another size, is zero, or holds NaN or infinity.
    """
    d = _vector(direction, size, "direction")
    return d / d.norm()


@torch.no_grad()
def _write(W: Tensor, value: Tensor) -> None:
    W.copy_(value)


def _vector(value: Tensor, size: int, name: str) -> Tensor:
    vector = torch.as_tensor(value).detach().cpu().double()
    if vector.shape != (size,):
        raise SteeringError(f"the {name} has shape {tuple(vector.shape)}; this layer needs ({size},)")
    if not bool(torch.isfinite(vector).all()):
        raise SteeringError(f"the {name} holds NaN or infinity")
    if not bool(vector.any()):
        raise SteeringError(f"the {name} is zero, so it points nowhere")
    return vector
