"""The real network with one part switched off: what is left of the tilt then (claim C11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from companion.errors import CompanionError
from companion.layers import AttentionLayer, Site

__all__ = ["Part", "ablated"]

Part = Literal["feed-forward", "softmax"]
_PARTS = ("feed-forward", "softmax")


@contextmanager
def ablated(model: Any, part: Part) -> Iterator[None]:
    """Run the network without one of its parts while the block lasts; its weights are not touched.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    part : {"feed-forward", "softmax"}
        ``"feed-forward"``: nothing is added to the residual stream behind the attention; norms stay.
        ``"softmax"``: every head attends to all that a token may see with equal weights.

    Raises
    ------
    CompanionError
        If there is no such part, or the softmax is ablated on a padded batch (in the forward pass: equal weights
        over padding mean nothing; give texts one at a time, ``companion.trace(..., batch_size=1)``).

    Examples
    --------
    >>> with companion.ablated(model, "feed-forward"):
    ...     without = companion.trace(model, texts)
    """
    if part not in _PARTS:
        raise CompanionError(f"part={part!r} is unknown; use one of {', '.join(_PARTS)}")
    base = model.network.base_model
    with ExitStack() as stack:
        if part == "feed-forward":
            for module in {site.feed_forward for site in model.sites}:
                stack.enter_context(module.register_forward_hook(_nothing))
        else:
            stack.enter_context(base.register_forward_pre_hook(_no_padding, with_kwargs=True))
            seen: dict[nn.Module, Tensor] = {}
            for site in {id(site.output): site for site in model.sites}.values():
                for handle in _evened(site, seen):
                    stack.enter_context(handle)
        yield


def _nothing(_module: nn.Module, _args: Any, result: Tensor) -> Tensor:
    return torch.zeros_like(result)


def _evened(site: Site, seen: dict[nn.Module, Tensor]) -> list[Any]:
    """Hooks that keep what the attention reads, and give its output map the heads of equal weights instead."""
    layer: AttentionLayer = site.layer

    def read(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any = None) -> None:
        seen[site.output] = (
            result if site.input_norm is not None else (args[0] if args else next(iter(kwargs.values())))
        )

    def even(_module: nn.Module, _args: Any) -> tuple[Tensor]:
        x = seen.pop(site.output)
        return (layer.to(x.dtype, x.device).heads(x, "uniform"),)

    if site.input_norm is not None:
        first = site.input_norm.register_forward_hook(read, with_kwargs=True)
    else:
        first = site.block.register_forward_pre_hook(read, with_kwargs=True)
    return [first, site.output.register_forward_pre_hook(even)]


def _no_padding(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(torch.as_tensor(mask).bool().all()):
        raise CompanionError(
            "equal weights over a padded batch mean nothing; give texts one at a time, as "
            "companion.trace(..., batch_size=1) does"
        )
