"""One attention layer as matrices: what the paper's map and every spectrum are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from companion.errors import LayerError

__all__ = [
    "STAGES",
    "Attention",
    "AttentionLayer",
    "Mask",
    "Rotation",
    "Site",
    "check_layer",
    "head_matrices",
    "layer_matrix",
]

Mask = Literal["full", "causal", "local"]
Attention = str | Tensor
Rotation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

STAGES = ("in", "input_norm", "heads", "update", "attention", "norm", "ffn", "out")

_MASKS = ("full", "causal", "local")
_MATRICES = ("W_Q", "W_K", "W_V", "W_O")


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    r"""The matrices of one attention layer, all heads together.

    Matrices follow ``y = W x``: the rows of ``W_Q`` are the queries' coordinates, head after head.
    ``W_K`` and ``W_V`` are given for *all* heads (grouped heads repeated), so ``F = W_O W_V`` always
    holds. The matrices may be views of a network's parameters: nothing is copied, and ``F`` is made
    anew after a parameter was changed in place.

    Parameters
    ----------
    W_Q, W_K : Tensor, shape (n_heads * d_head, d_model)
        Query and key matrices.
    W_V : Tensor, shape (n_heads * d_value, d_model)
        Value matrix.
    W_O : Tensor, shape (d_model, n_heads * d_value)
        Output matrix.
    b_Q, b_K, b_V, b_O : Tensor or None
        Biases, one entry for each row of their matrix.
    n_heads : int
        Number of heads.
    mask : {"full", "causal", "local"}
        What a token may see: every token, itself and those before it, or the last ``window`` of these.
    window : int or None
        Number of visible tokens, the token itself counted, where ``mask`` is ``"local"``.
    scale : float or None
        Factor of the query-key products; None stands for ``1 / sqrt(d_head)``.
    rotate : callable or None
        What happens to queries and keys, each (..., n_heads, n, d_head), before their product.
    gain : Tensor, shape (d_model,), or None
        Gain of the norm in front of the attention (pre-norm networks). It is no part of ``F``.

    Raises
    ------
    LayerError
        If shapes, mask or window do not fit together, or a matrix holds NaN or infinity.

    Notes
    -----
    Li and Altafini (arXiv:2605.25619) write ``O V`` for the product that is ``F`` here:
    :math:`F = \sum_h O_h V_h`.
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor
    b_Q: Tensor | None = None
    b_K: Tensor | None = None
    b_V: Tensor | None = None
    b_O: Tensor | None = None
    n_heads: int = 8
    mask: Mask = "full"
    window: int | None = None
    scale: float = None  # type: ignore[assignment]  # filled in below
    rotate: Rotation | None = None
    gain: Tensor | None = None
    _F: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        _check(self)
        if self.scale is None:
            object.__setattr__(self, "scale", self.d_head**-0.5)

    @property
    def d_model(self) -> int:
        """Dimension of the residual stream."""
        return self.W_Q.shape[1]

    @property
    def d_head(self) -> int:
        """Dimension of one head's queries and keys."""
        return self.W_Q.shape[0] // self.n_heads

    @property
    def F(self) -> Tensor:
        """The layer matrix ``W_O W_V``, shape (d_model, d_model), float64; made when asked and kept.

        The version counters of both factors are its key, so that an edit in place is seen.
        """
        key = (self.W_O._version, self.W_V._version)
        if key not in self._F:
            self._F.clear()
            self._F[key] = layer_matrix(self)
        return self._F[key]

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> AttentionLayer:
        """Return the layer with every tensor in ``dtype`` on ``device`` (itself where nothing changes)."""
        moved: dict[str, Any] = {
            f.name: value.to(device=device, dtype=dtype)
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        if all(moved[name] is getattr(self, name) for name in moved):
            return self
        return replace(self, **moved)

    def visible(self, n: int) -> Tensor:
        """Return which tokens see which: boolean, shape (n, n), row i is what token i may see."""
        distance = torch.arange(n).unsqueeze(1) - torch.arange(n)
        if self.mask == "full":
            return torch.ones(n, n, dtype=torch.bool)
        if self.mask == "causal":
            return distance >= 0
        assert self.window is not None
        return (distance >= 0) & (distance < self.window)

    def weights(self, x: Tensor, attention: Attention = "softmax", bias: bool = True) -> Tensor:
        r"""Return the attention matrices :math:`A^h`.

        Parameters
        ----------
        x : Tensor, shape (..., n, d_model)
            Tokens as the attention reads them.
        attention : {"softmax", "uniform"} or Tensor, shape (..., n_heads, n, n)
            Softmax of the actual query-key products, equal weights over what a token may see, or the
            matrices themselves.
        bias : bool
            Whether ``b_Q`` and ``b_K`` are used.

        Returns
        -------
        Tensor, shape (..., n_heads, n, n)
            Rows sum to one (an explicit ``attention`` is returned as it is).

        Raises
        ------
        LayerError
            If ``attention`` is an unknown word or a tensor of the wrong shape.
        """
        n = x.shape[-2]
        if isinstance(attention, Tensor):
            if attention.shape[-3:] != (self.n_heads, n, n):
                raise LayerError(
                    f"attention has shape {tuple(attention.shape)}; this layer and these tokens need "
                    f"(..., {self.n_heads}, {n}, {n})"
                )
            return attention.to(x)
        visible = self.visible(n).to(x.device)
        if attention == "uniform":
            even = visible.to(x.dtype) / visible.sum(-1, keepdim=True)
            return even.expand(*x.shape[:-2], self.n_heads, n, n)
        if attention != "softmax":
            raise LayerError(f"attention={attention!r} is unknown; use 'softmax', 'uniform' or a tensor")
        q = self._split(_affine(x, self.W_Q, self.b_Q if bias else None))
        k = self._split(_affine(x, self.W_K, self.b_K if bias else None))
        if self.rotate is not None:
            q, k = self.rotate(q, k)
        logits = (q @ k.transpose(-1, -2)) * self.scale
        return logits.masked_fill(~visible, float("-inf")).softmax(-1)

    def heads(self, x: Tensor, attention: Attention = "softmax", bias: bool = True) -> Tensor:
        r"""Return each token's concatenated head outputs, shape (..., n, n_heads * d_value).

        Token i gets :math:`z_i = \mathrm{concat}_h \sum_j A^h_{ij} (V_h x_j + b_{V,h})`: what ``W_O`` reads.
        """
        v = self._split(_affine(x, self.W_V, self.b_V if bias else None))
        mixed = self.weights(x, attention, bias) @ v
        return mixed.transpose(-3, -2).flatten(-2)

    def attend(self, x: Tensor, attention: Attention = "softmax", bias: bool = True) -> Tensor:
        """Return the attention's contribution to the residual stream, shape (..., n, d_model).

        With ``bias`` this is what the network's own attention module returns (before residual sum and
        norm); without, it is the sum in the paper's map.
        """
        return _affine(self.heads(x, attention, bias), self.W_O, self.b_O if bias else None)

    def _split(self, rows: Tensor) -> Tensor:
        """(..., n, n_heads * d) -> (..., n_heads, n, d)."""
        return rows.unflatten(-1, (self.n_heads, -1)).transpose(-3, -2)


@dataclass(frozen=True, eq=False)
class Site:
    """Where a layer sits in a network: the modules whose inputs and outputs hooks read.

    Attributes
    ----------
    layer : AttentionLayer
        The matrices; the same object at every site that shares its weights.
    block : Module
        The whole layer with its feed-forward network: residual stream in, residual stream out.
    output : Module
        The linear map that holds ``W_O``: reads the concatenated head outputs, returns the update.
    norm : Module or None
        The norm that reads the residual sum after attention, where one does: a feed-forward part that runs beside
        the attention leaves none.
    input_norm : Module or None
        The norm in front of the attention (pre-norm networks).
    feed_forward : Module or None
        The module whose output the feed-forward part adds to the residual stream.
    output_norm : Module or None
        The norm behind that sum (post-norm networks).
    keywords : callable
        What the block needs beside tokens and mask, as keyword arguments, for tokens (batch, n, d_model).
    """

    layer: AttentionLayer
    block: nn.Module
    output: nn.Module
    norm: nn.Module | None
    input_norm: nn.Module | None = None
    feed_forward: nn.Module | None = None
    output_norm: nn.Module | None = None
    keywords: Callable[[Tensor], dict[str, Any]] = lambda _: {}

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of :mod:`companion.hooks` that this layer has."""
        norms = {"input_norm": self.input_norm, "norm": self.norm, "ffn": self.output_norm}
        return tuple(stage for stage in STAGES if stage not in norms or norms[stage] is not None)


def layer_matrix(layer: AttentionLayer) -> Tensor:
    """Return ``W_O W_V`` in float64, shape (d_model, d_model), without keeping it as :attr:`AttentionLayer.F` does."""
    with torch.no_grad():
        return layer.W_O.double() @ layer.W_V.double()


def head_matrices(layer: AttentionLayer) -> list[Tensor]:
    """Return each head's ``O_h V_h`` in float64, shape (d_model, d_model); they sum to the layer matrix."""
    with torch.no_grad():
        outputs = layer.W_O.double().chunk(layer.n_heads, dim=1)
        values = layer.W_V.double().chunk(layer.n_heads, dim=0)
        return [O_h @ V_h for O_h, V_h in zip(outputs, values, strict=True)]


def check_layer(layer: int, count: int) -> int:
    """Return a layer index counted from the front, or raise :class:`LayerError` where there is none."""
    if not -count <= layer < count:
        raise LayerError(f"layer {layer} is out of range: the model has layers 0 to {count - 1} (or -{count} to -1)")
    return layer % count


def _affine(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    y = x @ W.T
    return y if b is None else y + b


def _check(layer: AttentionLayer) -> None:
    for name in _MATRICES:
        W = getattr(layer, name)
        if W.ndim != 2:
            raise LayerError(f"{name} has shape {tuple(W.shape)}; it must be a matrix, (out, in)")
    d = layer.W_Q.shape[1]
    if layer.n_heads < 1 or layer.W_Q.shape[0] % layer.n_heads or layer.W_V.shape[0] % layer.n_heads:
        raise LayerError(
            f"n_heads={layer.n_heads} does not divide the {layer.W_Q.shape[0]} rows of W_Q "
            f"and the {layer.W_V.shape[0]} rows of W_V"
        )
    wanted = {"W_K": tuple(layer.W_Q.shape), "W_V": (layer.W_V.shape[0], d), "W_O": (d, layer.W_V.shape[0])}
    for name, shape in wanted.items():
        if tuple(getattr(layer, name).shape) != shape:
            raise LayerError(
                f"{name} has shape {tuple(getattr(layer, name).shape)}, but with W_Q {tuple(layer.W_Q.shape)} "
                f"and W_V {tuple(layer.W_V.shape)} it must be {shape} (grouped heads repeated, y = W x)"
            )
    lengths = {
        "b_Q": layer.W_Q.shape[0],
        "b_K": layer.W_K.shape[0],
        "b_V": layer.W_V.shape[0],
        "b_O": d,
        "gain": d,
    }
    for name, length in lengths.items():
        b = getattr(layer, name)
        if b is not None and tuple(b.shape) != (length,):
            raise LayerError(f"{name} has shape {tuple(b.shape)}; it must be ({length},)")
    for name in (*_MATRICES, *lengths):
        value = getattr(layer, name)
        if value is not None and not bool(torch.isfinite(value).all()):
            raise LayerError(f"{name} holds NaN or infinity; a layer needs finite weights")
    if layer.mask not in _MASKS:
        raise LayerError(f"mask={layer.mask!r} is unknown; use one of {', '.join(_MASKS)}")
    if (layer.mask == "local") != (layer.window is not None) or (layer.window is not None and layer.window < 1):
        raise LayerError(
            f"window={layer.window} does not go with mask={layer.mask!r}; a local mask needs a window of at "
            "least 1 (the token itself counts), the others need none"
        )
