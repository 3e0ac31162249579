"""Encoders: every token sees every other, and the norm stands behind the residual sum."""

from __future__ import annotations

from typing import Any

from companion.adapters.parts import linear
from companion.layers import AttentionLayer, Mask, Site


def bert(network: Any) -> list[Site]:
    """BERT, RoBERTa, XLM-RoBERTa: separate query, key and value maps; causal where ``is_decoder`` is set."""
    mask: Mask = "causal" if network.config.is_decoder else "full"
    sites = []
    for block in network.base_model.encoder.layer:
        attention = block.attention
        layer = AttentionLayer(
            **linear(Q=attention.self.query, K=attention.self.key, V=attention.self.value, O=attention.output.dense),
            n_heads=network.config.num_attention_heads,
            scale=attention.self.scaling,
            mask=mask,
        )
        sites.append(
            Site(
                layer,
                block,
                output=attention.output.dense,
                norm=attention.output.LayerNorm,
                feed_forward=block.output.dense,
                output_norm=block.output.LayerNorm,
            )
        )
    return sites


def albert(network: Any) -> list[Site]:
    """ALBERT: weights shared within a group; every inner layer of a group is a layer of its own."""
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
        **linear(Q=attention.query, K=attention.key, V=attention.value, O=attention.dense),
        n_heads=n_heads,
        scale=attention.scaling,
    )
    return Site(
        layer,
        block,
        output=attention.dense,
        norm=attention.LayerNorm,
        feed_forward=block.ffn_output,
        output_norm=block.full_layer_layer_norm,
    )


def distilbert(network: Any) -> list[Site]:
    """DistilBERT: BERT's layer under other names."""
    sites = []
    for block in network.base_model.transformer.layer:
        attention = block.attention
        layer = AttentionLayer(
            **linear(Q=attention.q_lin, K=attention.k_lin, V=attention.v_lin, O=attention.out_lin),
            n_heads=network.config.n_heads,
            scale=attention.scaling,
        )
        sites.append(
            Site(
                layer,
                block,
                output=attention.out_lin,
                norm=block.sa_layer_norm,
                feed_forward=block.ffn,
                output_norm=block.output_layer_norm,
            )
        )
    return sites
