"""What else moves a network's output: the usual steering vector, a bias, the most sensitive direction, the logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from companion import hooks
from companion.errors import SteeringError
from companion.layers import check_layer
from companion.steering import unit

__all__ = ["added", "raised", "sensitive"]


@contextmanager
def added(
    model: Any, direction: Tensor, strength: float, layer: int = -1, where: Literal["out", "update"] = "out"
) -> Iterator[None]:
    r"""Add :math:`\alpha\, d` to every token while the block runs.

    Unlike :func:`companion.steered`, what is added does not depend on the token. Where layers share weights, this
    layer alone changes.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    direction : Tensor, shape (d_model,)
        Any non-zero length; its direction ``d`` is used.
    strength : float
        Any finite number.
    layer : int
        Index of the layer, negative from the end.
    where : {"out", "update"}
        Residual stream behind the layer (the usual steering vector, Turner et al. 2023), or the attention's own
        output, which is the same as editing its bias: ``b_O + strength * d``.

    Raises
    ------
    SteeringError, LayerError
        For a direction, strength or layer that cannot be used.
    """
    index = check_layer(layer, len(model.layers))
    d = unit(direction, model.layers[index].d_model)
    if not abs(strength) < float("inf"):
        raise SteeringError(f"strength={strength} must be a finite number")
    if where not in ("out", "update"):
        raise SteeringError(f"where={where!r} is unknown; use 'out' or 'update'")
    shift = (strength * d).to(model.device, model.network.dtype)
    with hooks.change(model.network.base_model, model.sites, index, where, lambda x: x + shift):
        yield


@contextmanager
def raised(model: Any, ids: Sequence[int], strength: float) -> Iterator[None]:
    r"""Raise the logits of some tokens while the block runs.

    No change of a next-token distribution gives these tokens more probability at the same KL divergence from the
    unsteered one: :math:`q \propto p\, e^{\lambda 1_S}` is the nearest of all distributions with its :math:`q(S)` (the
    Gibbs variational principle). So this is the ceiling for every way of steering towards words.

    Parameters
    ----------
    model : Model
        A network with an output head.
    ids : sequence of int
        The tokens.
    strength : float
        Added to their logits.

    Raises
    ------
    SteeringError
        If the network has no output head, or the strength is not finite.
    """
    if not abs(strength) < float("inf"):
        raise SteeringError(f"strength={strength} must be a finite number")
    if model.network.get_output_embeddings() is None:
        raise SteeringError(f"{model.name} has no output head, so there are no logits to raise")
    chosen = torch.tensor(ids, device=model.device)

    def lift(_module: Any, _args: Any, result: Any) -> Any:
        result.logits.index_add_(-1, chosen, result.logits.new_full((*result.logits.shape[:-1], len(ids)), strength))
        return result

    handle = model.network.register_forward_hook(lift)
    try:
        yield
    finally:
        handle.remove()


def sensitive(
    model: Any, texts: Iterable[str], layer: int = -1, steps: int = 30, seed: int = 0
) -> tuple[Tensor, float]:
    r"""Find the direction whose addition to every token behind a layer moves the network's output most.

    The principal right singular vector of the Jacobian from :func:`added`'s vector to the last hidden states, by the
    power method on :math:`J^\top J`.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        A few short texts; the Jacobian is that of all of them together.
    layer : int
        Index of the layer, negative from the end.
    steps : int
        Of the power method; it stops when the direction changes by less than 1e-6.
    seed : int
        Of the direction that it starts from.

    Returns
    -------
    direction : Tensor, shape (d_model,)
        Unit length, float64; its sign means nothing.
    float
        Its singular value over the root of the number of tokens: output moved, root mean square over tokens.
    """
    index = check_layer(layer, len(model.layers))
    windows = [torch.tensor([window], device=model.device) for _, window in model.encoded(texts)]
    base = model.network.base_model
    d = torch.randn(model.layers[index].d_model, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u = (d / d.norm()).to(model.device, model.network.dtype)
    square = 0.0
    for _ in range(steps):
        image = torch.zeros_like(u)
        for ids in windows:

            def output(shift: Tensor, ids: Tensor = ids) -> Tensor:
                with hooks.change(base, model.sites, index, "out", lambda x: x + shift):
                    hidden: Tensor = base(input_ids=ids)[0]
                return hidden

            # Only plain matrix products are differentiated twice, which a forward derivative here needs.
            with sdpa_kernel(SDPBackend.MATH):
                _, forward = torch.autograd.functional.jvp(output, torch.zeros_like(u), u)
                _, back = torch.autograd.functional.vjp(output, torch.zeros_like(u), forward)
            image += back
        square = float(image.norm())
        change, u = float((image / square - u).norm()), image / square
        if change < 1e-6:
            break
    tokens = sum(ids.shape[1] for ids in windows)
    return u.cpu().double(), (square / tokens) ** 0.5
