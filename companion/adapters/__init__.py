"""From a Hugging Face network to its layers: one short function a family.

An adapter looks up the modules of each attention layer and says how they store their weights. Its work is
checked when a model is loaded (one-token texts, see :mod:`companion.models`) and, for longer texts, in the
tests: both against the network's own attention output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from companion.adapters import decoders, encoders
from companion.errors import UnsupportedModelError
from companion.layers import Site

__all__ = ["ADAPTERS", "check_supported", "sites_of"]

ADAPTERS: dict[str, Callable[[Any], list[Site]]] = {
    "albert": encoders.albert,
    "bert": encoders.bert,
    "distilbert": encoders.distilbert,
    "gemma": decoders.llama,
    "gpt2": decoders.gpt2,
    "gpt_neo": decoders.gpt_neo,
    "gpt_neox": decoders.gpt_neox,
    "llama": decoders.llama,
    "mistral": decoders.llama,
    "opt": decoders.opt,
    "phi": decoders.phi,
    "phi3": decoders.llama,
    "qwen2": decoders.llama,
    "qwen3": decoders.llama,
    "roberta": encoders.bert,
    "xlm-roberta": encoders.bert,
}


def sites_of(network: Any) -> list[Site]:
    """Return a network's layers with the modules that they came from, first layer first.

    Raises
    ------
    UnsupportedModelError
        If no adapter knows the architecture, or the checkpoint uses a part that its adapter does not read.
    """
    check_supported(network.config)
    return ADAPTERS[network.config.model_type](network)


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
