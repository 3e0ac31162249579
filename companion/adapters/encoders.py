"""Encoders: every token sees every other, and the norm stands behind the residual sum."""

from __future__ import annotations

from typing import Any

from companion.adapters.parts import linear
from companion.layers import AttentionLayer, Site


def bert(network: Any, block: Any, index: int) -> Site:
    """BERT, RoBERTa, XLM-RoBERTa: separate query, key and value maps; causal where ``is_decoder`` is set."""
    maps, output = block.attention.self, block.attention.output
    layer = AttentionLayer(
        **linear(Q=maps.query, K=maps.key, V=maps.value, O=output.dense),
        n_heads=network.config.num_attention_heads,
        scale=maps.scaling,
        mask="causal" if network.config.is_decoder else "full",
    )
    return Site(
        layer,
        block,
        output=output.dense,
        norm=output.LayerNorm,
        feed_forward=block.output.dense,
        output_norm=block.output.LayerNorm,
    )


def albert_blocks(network: Any) -> list[Any]:
    """ALBERT's layers in the order in which they are applied: groups share weights, inner layers do not."""
    config, groups = network.config, network.base_model.encoder.albert_layer_groups
    places_per_group = config.num_hidden_layers / config.num_hidden_groups
    return [block for i in range(config.num_hidden_layers) for block in groups[int(i / places_per_group)].albert_layers]


def albert(network: Any, block: Any, index: int) -> Site:
    """ALBERT: BERT's layer under other names."""
    attention = block.attention
    layer = AttentionLayer(
        **linear(Q=attention.query, K=attention.key, V=attention.value, O=attention.dense),
        n_heads=network.config.num_attention_heads,
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


def distilbert(network: Any, block: Any, index: int) -> Site:
    """DistilBERT: BERT's layer under other names again."""
    attention = block.attention
    layer = AttentionLayer(
        **linear(Q=attention.q_lin, K=attention.k_lin, V=attention.v_lin, O=attention.out_lin),
        n_heads=network.config.n_heads,
        scale=attention.scaling,
    )
    return Site(
        layer,
        block,
        output=attention.out_lin,
        norm=block.sa_layer_norm,
        feed_forward=block.ffn,
        output_norm=block.output_layer_norm,
    )
