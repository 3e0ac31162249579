"""From a Hugging Face network to its layers: one short function a family.

An adapter looks up the modules of each attention layer and says how they store their weights. Its work is
checked when a model is loaded (one-token texts, see :mod:`companion.models`) and, for longer texts, in the
tests: both against the network's own attention output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from companion.errors import UnsupportedModelError
from companion.layers import AttentionLayer, Mask, Site

__all__ = ["ADAPTERS", "sites_of"]


def bert(network: Any) -> list[Site]:
    """BERT: post-norm, separate query, key and value maps; causal where ``is_decoder`` is set."""
    mask: Mask = "causal" if network.config.is_decoder else "full"
    sites = []
    for block in network.base_model.encoder.layer:
        attention = block.attention
        layer = AttentionLayer(
            **_linear(Q=attention.self.query, K=attention.self.key, V=attention.self.value, O=attention.output.dense),
            n_heads=network.config.num_attention_heads,
            scale=attention.self.scaling,
            mask=mask,
        )
        sites.append(Site(layer, block, output=attention.output.dense, norm=attention.output.LayerNorm))
    return sites


def albert(network: Any) -> list[Site]:
    """ALBERT: post-norm, weights shared within a group; every inner layer of a group is a layer of its own."""
    config = network.config
    groups = [
        [_albert_site(block, config.num_attention_heads) for block in group.albert_layers]
        for group in network.base_model.encoder.albert_layer_groups
    ]
    places_per_group = config.num_hidden_layers / config.num_hidden_groups
    return [site for i in range(config.num_hidden_layers) for site in groups[int(i / places_per_group)]]


def _albert_site(block: Any, n_heads: int) -> Site:
    attention = block.attention
    layer = AttentionLayer(
        **_linear(Q=attention.query, K=attention.key, V=attention.value, O=attention.dense),
        n_heads=n_heads,
        scale=attention.scaling,
    )
    return Site(layer, block, output=attention.dense, norm=attention.LayerNorm)


def gpt2(network: Any) -> list[Site]:
    """GPT-2: pre-norm, causal; ``Conv1D`` stores (in, out), with queries, keys and values side by side."""
    sites = []
    for block in network.base_model.h:
        W_Q, W_K, W_V = block.attn.c_attn.weight.detach().T.chunk(3)
        b_Q, b_K, b_V = block.attn.c_attn.bias.detach().chunk(3)
        layer = AttentionLayer(
            W_Q=W_Q,
            W_K=W_K,
            W_V=W_V,
            W_O=block.attn.c_proj.weight.detach().T,
            b_Q=b_Q,
            b_K=b_K,
            b_V=b_V,
            b_O=block.attn.c_proj.bias.detach(),
            n_heads=network.config.num_attention_heads,
            scale=block.attn.scaling,
            mask="causal",
            gain=block.ln_1.weight.detach(),
        )
        sites.append(Site(layer, block, output=block.attn.c_proj, norm=block.ln_2, input_norm=block.ln_1))
    return sites


def gpt_neo(network: Any) -> list[Site]:
    """GPT-Neo: pre-norm, causal, global and local layers in turn; logits are not scaled."""
    sites = []
    for block, kind in zip(network.base_model.h, network.config.attention_layers, strict=True):
        attention = block.attn.attention
        layer = AttentionLayer(
            **_linear(Q=attention.q_proj, K=attention.k_proj, V=attention.v_proj, O=attention.out_proj),
            n_heads=network.config.num_heads,
            scale=1.0,
            mask="local" if kind == "local" else "causal",
            window=network.config.window_size if kind == "local" else None,
            gain=block.ln_1.weight.detach(),
        )
        sites.append(Site(layer, block, output=attention.out_proj, norm=block.ln_2, input_norm=block.ln_1))
    return sites


ADAPTERS: dict[str, Callable[[Any], list[Site]]] = {
    "albert": albert,
    "bert": bert,
    "gpt2": gpt2,
    "gpt_neo": gpt_neo,
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
    if config.model_type not in ADAPTERS:
        raise UnsupportedModelError(
            f"no adapter for the architecture {config.model_type!r}; there is one for {', '.join(ADAPTERS)}"
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


def _linear(**maps: nn.Linear) -> dict[str, Any]:
    """``W_*`` and ``b_*`` of ordinary linear maps, as views of their parameters."""
    tensors: dict[str, Any] = {}
    for letter, module in maps.items():
        tensors[f"W_{letter}"] = module.weight.detach()
        tensors[f"b_{letter}"] = None if module.bias is None else module.bias.detach()
    return tensors
