"""Directions with a meaning: what raises words, what tells two kinds of text apart, where a layer pulls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from companion import hooks
from companion.errors import SteeringError
from companion.layers import check_layer
from companion.spectrum import spectrum

__all__ = ["direction", "promoted", "word_tokens"]


def direction(
    model: Any,
    *,
    words: Sequence[str] | None = None,
    texts: Iterable[str] | None = None,
    against: Iterable[str] | None = None,
    eigenvector: int | None = None,
    layer: int = -1,
) -> Tensor:
    """Return a direction of the residual stream that means something.

    * ``words`` and ``texts``: what raises the words' mean logit over that of the whole vocabulary: its gradient behind
      ``layer``, averaged over the tokens of the texts. What stands between the layer and the logits is part of it: a
      last LayerNorm leaves it no component along the all-ones vector and along the token itself, and its gain has
      rescaled it.
    * ``texts`` and ``against``: mean residual stream behind ``layer`` over the tokens of the one, minus that of the
      other. A last LayerNorm removes what of it lies along the all-ones vector, and rescales the rest by its gain.
    * ``eigenvector``: the principal right eigenvector of that layer's ``F`` (residual order), or the first basis vector
      of a leading pair's plane: where the paper says that layer pulls. Its sign means nothing.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    words : sequence of str, or None
        Each a single token of the model, see :func:`word_tokens`.
    texts, against : iterable of str, or None
        As above; every token counts once.
    eigenvector : int or None
        Index of a layer.
    layer : int
        Behind which layer the direction is meant to act, negative from the end.

    Returns
    -------
    Tensor, shape (d_model,), float64
        Unit length.

    Raises
    ------
    SteeringError
        If the arguments are none of the three combinations, the network has no output head (``words``), or the
        difference is zero.
    TextError
        If a list of texts is empty.

    Examples
    --------
    >>> companion.direction(model, words=["sea", "ship"], texts=companion.data.texts("english")).shape
    torch.Size([128])
    """
    given = {name for name, value in (("words", words), ("texts", texts), ("against", against)) if value is not None}
    index = check_layer(layer, len(model.layers))
    if eigenvector is not None and not given:
        F = model.layers[check_layer(eigenvector, len(model.layers))].F
        found = torch.from_numpy(spectrum(F, 1).basis[:, 0].copy())
    elif eigenvector is None and given == {"words", "texts"}:
        assert words is not None and texts is not None
        found = _raising(model, list(word_tokens(model, words).values()), texts, index)
    elif eigenvector is None and given == {"texts", "against"}:
        assert texts is not None and against is not None
        found = hooks.mean(model, texts, "out", index) - hooks.mean(model, against, "out", index)
    else:
        raise SteeringError("give words and texts, or texts and against, or eigenvector: see companion.direction")
    if not float(found.norm()) > 0:
        raise SteeringError("both sides are the same, so there is no direction from one to the other")
    return found / found.norm()


def word_tokens(model: Any, words: Iterable[str]) -> dict[str, int]:
    """Return the token of each word, as it stands within a sentence (with a space in front, where the model has that).

    Words that are several tokens are left out.

    Raises
    ------
    SteeringError
        If none is a single token, or the model has no tokenizer.
    """
    if model.tokenizer is None:
        raise SteeringError(f"{model.name} was loaded without a tokenizer, so words cannot be looked up")
    found = {}
    given = list(words)
    for word in given:
        for form in (f" {word}", word):
            ids = model.tokenizer.encode(form, add_special_tokens=False)
            if len(ids) == 1 and ids[0] != model.tokenizer.unk_token_id:
                found[word] = ids[0]
                break
    if not found:
        raise SteeringError(
            f"none of {', '.join(given[:8]) or 'no words'} is a single token of {model.name}; use others"
        )
    return found


@torch.no_grad()
def promoted(model: Any, state: Tensor, count: int = 8) -> list[str]:
    """Return the tokens that the output head would give most to a token that left the last layer at ``state``.

    Parameters
    ----------
    model : Model
        A network with an output head, see :func:`companion.load`.
    state : Tensor, shape (d_model,)
        Residual stream behind the last layer; its length matters where no norm follows.
    count : int
        How many tokens, the likeliest first.

    Raises
    ------
    SteeringError
        If the network has no output head or no tokenizer.
    """
    if model.network.get_output_embeddings() is None or model.tokenizer is None:
        raise SteeringError(f"{model.name} has no output head or no tokenizer, so its states have no words")
    stream = state.to(model.device, model.network.dtype)
    last = len(model.layers) - 1
    with hooks.change(model.network.base_model, model.sites, last, "out", stream.expand_as):
        logits = model.network(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device)).logits
    return [model.tokenizer.decode([index]).strip() for index in logits[0, 0].topk(count).indices.tolist()]


def _raising(model: Any, ids: list[int], texts: Iterable[str], layer: int) -> Tensor:
    """Gradient of the lead of some tokens' logits over all, for a shift of every token behind a layer."""
    if model.network.get_output_embeddings() is None:
        raise SteeringError(f"{model.name} has no output head, so words have no direction; give texts and against")
    size = model.layers[layer].d_model
    total = torch.zeros(size, dtype=torch.float64)
    for _, window in model.encoded(texts):
        shift = torch.zeros(size, device=model.device, dtype=model.network.dtype, requires_grad=True)
        with torch.enable_grad(), hooks.change(model.network.base_model, model.sites, layer, "out", shift.add):
            logits = model.network(input_ids=torch.tensor([window], device=model.device)).logits
            lead = (logits[..., ids].mean(-1) - logits.mean(-1)).sum()
        (gradient,) = torch.autograd.grad(lead, shift)
        total += gradient.double().cpu()
    return total
