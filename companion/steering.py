"""Rank-1 edits of an output matrix that align every token with a chosen direction (claim C10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from companion import hooks
from companion.errors import SteeringError
from companion.layers import AttentionLayer, check_layer

__all__ = ["cosines", "paper_reading", "reading", "steered"]


class _Edits:
    """The original of one matrix, and the edits that are in force on it.

    The matrix is always the original plus the edits still in force, added in the order in which they came.
    So an edit that ends takes nothing else with it, in whatever order blocks are left, and the last one to
    end leaves the original's bits.
    """

    def __init__(self, W: Tensor) -> None:
        self.original = W.clone()
        self.active: list[tuple[object, Tensor, Tensor]] = []

    def total(self) -> Tensor:
        W = self.original
        for _, column, row in self.active:
            W = torch.addr(W, column, row)
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
    target = model.layers[check_layer(layer, len(model.layers))]
    W = target.W_O
    d = _vector(direction, target.d_model, "direction")
    d = d / d.norm()
    if not 0 <= strength < float("inf"):
        raise SteeringError(
            f"strength={strength} must be a finite number, zero or more; turn the direction round to go back"
        )
    p = paper_reading(target, d) if reading is None else _vector(reading, W.shape[1], "reading")
    column, row = (strength * d).to(W), p.to(W)
    with torch.no_grad():
        edits = _edits.get(W.data_ptr()) or _Edits(W)
        edited = torch.addr(edits.total(), column, row)
    if not bool(torch.isfinite(edited).all()):
        raise SteeringError(f"strength={strength} overflows weights of dtype {W.dtype}; use less, or float32 weights")
    mine = object()
    try:
        _edits[W.data_ptr()] = edits
        edits.active.append((mine, column, row))
        _write(W, edited)
        del edited  # the block may be long, and this is as large as the weights
        yield
    finally:
        edits.active = [edit for edit in edits.active if edit[0] is not mine]
        _write(W, edits.total())
        if not edits.active:
            _edits.pop(W.data_ptr(), None)


def paper_reading(layer: AttentionLayer, d: Tensor) -> Tensor:
    """Return the paper's ``p`` with ``W_V^T p = d``, shape (n_heads * d_value,), float64.

    The least-squares solution of least norm, where ``W_V`` is not square or is singular.
    """
    solution: Tensor = torch.linalg.lstsq(
        layer.W_V.detach().T.cpu().double(), d.detach().cpu().double()[:, None], driver="gelsd"
    ).solution[:, 0]
    return solution


@torch.no_grad()
def reading(model: Any, texts: Iterable[str], layer: int = -1) -> Tensor:
    r"""Return the mean concatenated head output over calibration texts, as a reading for :func:`steered`.

    Scaled to :math:`p = \bar z / \|\bar z\|^2`, so that the average token reads 1: a strength of alpha
    then adds alpha times the direction to it. Tokens with :math:`p \cdot z_i > 0` move to ``+d``.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        Calibration texts; every token counts once.
    layer : int
        Index of the layer, negative from the end.

    Returns
    -------
    Tensor, shape (n_heads * d_value,), float64

    Raises
    ------
    TextError
        If there is no text, or one is empty.
    """
    index = check_layer(layer, len(model.layers))
    total = torch.zeros(model.layers[index].W_O.shape[1], dtype=torch.float64)
    count = 0

    def see(at: int, _stage: str, z: Tensor) -> None:
        nonlocal count
        if at == index:
            total.add_(z.double().sum((0, 1)).cpu())
            count += z.shape[0] * z.shape[1]

    base = model.network.base_model
    with hooks.watch(base, model.sites, ["heads"], see):
        for _, window in model.encoded(texts):
            base(input_ids=torch.tensor([window], device=model.device))
    mean = total / count
    return mean / mean.square().sum()


@torch.no_grad()
def cosines(model: Any, texts: Iterable[str], direction: Tensor, layer: int = -1) -> pd.DataFrame:
    """Measure how tokens stand to a direction at every stage of one layer, steered or not.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`; call this inside :func:`steered` to see what steering does.
    texts : iterable of str
        One row a text and stage.
    direction : Tensor, shape (d_model,)
        Any non-zero length.
    layer : int
        Index of the layer, negative from the end.

    Returns
    -------
    DataFrame
        text, stage (``in``, ``attention``, ``norm``, ``out``), signed and absolute (mean cosine over tokens),
        plus (share of tokens with positive cosine).

    Raises
    ------
    SteeringError, LayerError, TextError
        For a direction, a layer or texts that cannot be used.
    """
    index = check_layer(layer, len(model.layers))
    d = _vector(direction, model.layers[index].d_model, "direction")
    d = (d / d.norm()).to(model.device, model.network.dtype)
    found: dict[tuple[int, str], list[Tensor]] = {}
    number = 0

    def see(at: int, stage: str, x: Tensor) -> None:
        if at == index:
            cosine = x @ d / torch.linalg.vector_norm(x, dim=-1)
            found.setdefault((number, stage), []).append(cosine.flatten().double().cpu())

    base = model.network.base_model
    with hooks.watch(base, model.sites, ["in", "attention", "norm", "out"], see):
        for text, window in model.encoded(texts):
            number = text
            base(input_ids=torch.tensor([window], device=model.device))
    by_place = {key: torch.cat(parts).numpy() for key, parts in found.items()}
    places = pd.MultiIndex.from_tuples(by_place, names=["text", "stage"]).to_frame(index=False)
    return places.assign(
        signed=[values.mean() for values in by_place.values()],
        absolute=[abs(values).mean() for values in by_place.values()],
        plus=[(values > 0).mean() for values in by_place.values()],
    )


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
