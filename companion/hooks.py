"""What the real network does: readings of the residual stream at named stages, through module hooks.

=============  ============================================================================================
stage          reading, shape (batch, n, d_model) unless said otherwise
=============  ============================================================================================
``in``         residual stream in front of the layer
``input_norm`` the same after the norm in front of the attention (pre-norm networks only)
``heads``      concatenated head outputs, (batch, n, n_heads * d_value)
``update``     what attention adds to the residual stream
``attention``  residual stream after the sum, before the norm that follows
``norm``       output of that norm (not where the feed-forward part runs beside the attention)
``ffn``        residual stream after the feed-forward part's sum, before the norm behind it (post-norm networks only)
``out``        residual stream behind the layer, feed-forward network included
=============  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from companion.errors import LayerError
from companion.layers import STAGES, Site

__all__ = ["STAGES", "change", "iterate", "mean", "states", "walk", "watch"]

# stage -> (attribute of a Site, whether the module's input or its output is read)
_READINGS = {
    "in": ("block", "input"),
    "input_norm": ("input_norm", "output"),
    "heads": ("output", "input"),
    "update": ("output", "output"),
    "attention": ("norm", "input"),
    "norm": ("norm", "output"),
    "ffn": ("output_norm", "input"),
    "out": ("block", "output"),
}


@contextmanager
def watch(
    network: nn.Module, sites: Sequence[Site], stages: Sequence[str], see: Callable[[int, str, Tensor], None]
) -> Iterator[None]:
    """Call ``see(layer, stage, x)`` for every layer and stage that the network passes.

    Nothing is kept here: what ``see`` does not reduce is freed with the forward pass. Layers that share a
    module are told apart by the order of its calls, counted anew in each forward pass.

    Parameters
    ----------
    network : Module
        The module whose forward pass is called inside the block.
    sites : sequence of Site
        Its layers, in the order in which it runs them.
    stages : sequence of str
        Names from the table above; stages that a layer does not have are left out.
    see : callable
        Called with the layer's index, the stage and the reading.

    Examples
    --------
    >>> with watch(model.network, model.sites, ["in"], lambda layer, stage, x: print(layer, x.shape)):
    ...     model.network(ids)
    """
    unknown = [stage for stage in stages if stage not in _READINGS]
    if unknown:
        raise LayerError(f"stage {unknown[0]!r} is unknown; use {', '.join(STAGES)}")
    calls: dict[tuple[nn.Module, str], int] = {}

    def listener(
        module: nn.Module, stage: str, side: str, layers: list[int], hear: Callable[[int, Tensor], None]
    ) -> Callable[..., None]:
        def called(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any = None) -> None:
            count = calls.get((module, stage), 0)
            calls[module, stage] = count + 1
            read = result if side == "output" else (args[0] if args else next(iter(kwargs.values())))
            hear(layers[count % len(layers)], read[0] if isinstance(read, tuple) else read)

        return called

    with ExitStack() as stack:
        stack.enter_context(network.register_forward_pre_hook(lambda *_: calls.clear()))
        for stage in stages:
            for attribute, side, layers, hear in _readers(sites, stage, see):
                places: dict[nn.Module, list[int]] = {}
                for index in layers:
                    places.setdefault(getattr(sites[index], attribute), []).append(index)
                for module, indices in places.items():
                    called = listener(module, f"{stage} {attribute}", side, indices, hear)
                    # A small module's input is read beside its output: two readings at once cost less than one by one.
                    if attribute == "block" and side == "input":
                        handle = module.register_forward_pre_hook(called, with_kwargs=True)
                    else:
                        handle = module.register_forward_hook(called, with_kwargs=True)
                    stack.enter_context(handle)
        yield


@contextmanager
def change(
    network: nn.Module, sites: Sequence[Site], layer: int, stage: str, how: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Put ``how(x)`` in the place of one layer's reading; other layers that share the module keep theirs.

    Parameters
    ----------
    network, sites
        As for :func:`watch`.
    layer : int
        Index of the layer, from the front.
    stage : str
        One that is a module's output: ``input_norm``, ``update``, ``norm`` or ``out``.
    how : callable
        From the reading to what the network goes on with, of the same shape.

    Raises
    ------
    LayerError
        If the stage is no module's output, or the layer does not have it.
    """
    attribute, side = _READINGS.get(stage, ("", ""))
    module = getattr(sites[layer], attribute) if side == "output" else None
    if module is None:
        raise LayerError(f"stage {stage!r} of layer {layer} is no module's output, so it cannot be replaced")
    sharing = [index for index, site in enumerate(sites) if getattr(site, attribute) is module]
    calls = 0

    def again(*_: Any) -> None:
        nonlocal calls
        calls = 0

    def replaced(_module: nn.Module, _args: Any, result: Any) -> Any:
        nonlocal calls
        mine = sharing[calls % len(sharing)] == layer
        calls += 1
        if not mine:
            return None
        return (how(result[0]), *result[1:]) if isinstance(result, tuple) else how(result)

    with ExitStack() as stack:
        stack.enter_context(network.register_forward_pre_hook(again))
        stack.enter_context(module.register_forward_hook(replaced))
        yield


def _readers(
    sites: Sequence[Site], stage: str, see: Callable[[int, str, Tensor], None]
) -> list[tuple[str, str, list[int], Callable[[int, Tensor], None]]]:
    """Which modules a stage is read from: (attribute of a Site, side, layers, what is done with the reading)."""
    attribute, side = _READINGS[stage]
    have = [index for index, site in enumerate(sites) if getattr(site, attribute) is not None]
    readers = [(attribute, side, have, lambda layer, x: see(layer, stage, x))]
    beside = [index for index, site in enumerate(sites) if site.norm is None]
    if stage == "attention" and beside:
        # No module reads the sum there, so it is made from its two parts.
        stream: dict[int, Tensor] = {}
        readers.append(("block", "input", beside, stream.__setitem__))
        readers.append(("output", "output", beside, lambda layer, x: see(layer, stage, stream.pop(layer) + x)))
    return readers


@torch.no_grad()
def states(network: nn.Module, sites: Sequence[Site], ids: Tensor, stage: str = "in") -> Tensor:
    """Return the readings of one stage for a few texts of equal length.

    For short texts and pictures: this keeps every reading. :func:`companion.trace` does not.

    Parameters
    ----------
    ids : Tensor of int, shape (batch, n)
        Token ids, no padding.

    Returns
    -------
    Tensor, shape (layers, batch, n, d_model)
    """
    found: dict[int, Tensor] = {}
    with watch(network, sites, [stage], lambda layer, _, x: found.__setitem__(layer, x.clone())):
        network(input_ids=ids)
    if not found:
        raise LayerError(f"no layer of this network has the stage {stage!r}")
    return torch.stack([found[layer] for layer in sorted(found)])


@torch.no_grad()
def walk(model: Any, texts: Iterable[str], stages: Sequence[str], see: Callable[[int, int, str, Tensor], None]) -> None:
    """Run the network over texts, one window at a time, and call ``see(text, layer, stage, x)`` for each reading.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        Read lazily; no padding.
    stages, see
        As for :func:`watch`; ``see`` is also given the number of the text.
    """
    base = model.network.base_model
    for text, window in model.encoded(texts):
        with watch(base, model.sites, stages, partial(see, text)):
            base(input_ids=torch.tensor([window], device=model.device))


def mean(model: Any, texts: Iterable[str], stage: str, layer: int) -> Tensor:
    """Return the mean over all tokens of one layer's reading (index from the front), float64 on the CPU."""
    total: Tensor | float = 0.0
    count = 0

    def see(_text: int, at: int, _stage: str, x: Tensor) -> None:
        nonlocal total, count
        if at == layer:
            total = total + x.double().sum((0, 1)).cpu()
            count += x.shape[0] * x.shape[1]

    walk(model, texts, [stage], see)
    return torch.as_tensor(total) / count


@torch.no_grad()
def iterate(site: Site, x: Tensor, steps: int) -> Tensor:
    """Apply one whole layer (attention, feed-forward network, norms) again and again, past any depth.

    Parameters
    ----------
    site : Site
        The layer; it sees every token (no padding), or those before it where the network is causal.
    x : Tensor, shape (batch, n, d_model)
        Residual stream to start from.
    steps : int
        Number of applications.

    Returns
    -------
    Tensor, shape (steps + 1, batch, n, d_model)
        The residual stream; entry 0 is ``x``.
    """
    n = x.shape[1]
    hidden = torch.zeros(n, n, dtype=x.dtype, device=x.device)
    hidden.masked_fill_(~site.layer.visible(n).to(x.device), torch.finfo(x.dtype).min)
    stream = [x]
    for _ in range(steps):
        result = site.block(stream[-1], attention_mask=hidden.expand(len(x), 1, n, n), **site.keywords(stream[-1]))
        stream.append(result[0] if isinstance(result, tuple) else result)
    return torch.stack(stream)
