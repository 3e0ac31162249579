"""From a Hugging Face network to its layers: one short function a family.

An adapter looks up the modules of one attention layer and says how they store their weights. Its work is
checked when a model is loaded (one-token texts, see :mod:`companion.models`) and, for longer texts, in the
tests: both against the network's own attention output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn

from companion.adapters import decoders, encoders
from companion.errors import UnsupportedModelError
from companion.layers import Site

__all__ = ["ADAPTERS", "Family", "check_supported", "sites_of"]


class Family(NamedTuple):
    """How to read the networks of one family.

    Attributes
    ----------
    blocks : callable
        From the network to its layers, whole (with their feed-forward parts), in the order in which they run.
    site : callable
        From the network, one of these and its place to the layer's matrices and modules.
    """

    blocks: Callable[[Any], Sequence[nn.Module]]
    site: Callable[[Any, Any, int], Site]


_LLAMA = Family(attrgetter("base_model.layers"), decoders.llama)
_BERT = Family(attrgetter("base_model.encoder.layer"), encoders.bert)
_GPT = "base_model.h"

ADAPTERS: dict[str, Family] = {
    "albert": Family(encoders.albert_blocks, encoders.albert),
    "bert": _BERT,
    "distilbert": Family(attrgetter("base_model.transformer.layer"), encoders.distilbert),
    "gemma": _LLAMA,
    "gpt2": Family(attrgetter(_GPT), decoders.gpt2),
    "gpt_neo": Family(attrgetter(_GPT), decoders.gpt_neo),
    "gpt_neox": Family(attrgetter("base_model.layers"), decoders.gpt_neox),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "opt": Family(attrgetter("base_model.decoder.layers"), decoders.opt),
    "phi": Family(attrgetter("base_model.layers"), decoders.phi),
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}


def sites_of(network: Any) -> list[Site]:
    """Return a network's layers with the modules that they came from, first layer first.

    A block that runs in several places is the same site in each.

    Raises
    ------
    UnsupportedModelError
        If no adapter knows the architecture, or the checkpoint uses a part that its adapter does not read.
    """
    check_supported(network.config)
    family = ADAPTERS[network.config.model_type]
    found: dict[int, Site] = {}
    sites = []
    for index, block in enumerate(family.blocks(network)):
        if id(block) not in found:
            found[id(block)] = family.site(network, block, index)
        sites.append(found[id(block)])
    return sites


def check_supported(config: Any) -> None:
    """Raise :class:`UnsupportedModelError` unless an adapter reads this kind of checkpoint."""
    if getattr(config, "quantization_config", None):
        raise UnsupportedModelError(
            "the checkpoint is quantised: its weights are codes, and products of codes have no spectrum; "
            "load the checkpoint that it was made from, in bfloat16 or float32"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{config.model_type!r} is an encoder-decoder; neither half is read, because the decoder's layers attend "
            "to the encoder as well; load an encoder or a decoder that stands alone"
        )
    if config.model_type not in ADAPTERS:
        raise UnsupportedModelError(
            f"no adapter for the architecture {config.model_type!r}; there is one for {', '.join(ADAPTERS)}; "
            "the page 'Adding a model' of the book shows how to write one"
        )
    if getattr(config, "add_cross_attention", False):
        raise UnsupportedModelError(
            "add_cross_attention=True: the layer is more than self-attention; load an encoder or a decoder alone"
        )
    if getattr(config, "position_embedding_type", "absolute") not in (None, "absolute"):
        raise UnsupportedModelError(
            f"position_embedding_type={config.position_embedding_type!r} changes the attention itself; "
            "only 'absolute' is read"
        )
    if getattr(config, "use_bidirectional_attention", None):
        raise UnsupportedModelError("use_bidirectional_attention is set: a decoder without its causal mask is not read")
