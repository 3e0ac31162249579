"""Decoders: a token sees itself and those before it; the norm stands in front of the attention (mostly)."""

from __future__ import annotations

from typing import Any

from companion.adapters.parts import grouped, linear, positions, rotary
from companion.layers import AttentionLayer, Site


def gpt2(network: Any, block: Any, index: int) -> Site:
    """GPT-2: ``Conv1D`` stores (in, out), with queries, keys and values side by side."""
    attention = block.attn
    W_Q, W_K, W_V = attention.c_attn.weight.detach().T.chunk(3)
    b_Q, b_K, b_V = attention.c_attn.bias.detach().chunk(3)
    layer = AttentionLayer(
        W_Q=W_Q,
        W_K=W_K,
        W_V=W_V,
        W_O=attention.c_proj.weight.detach().T,
        b_Q=b_Q,
        b_K=b_K,
        b_V=b_V,
        b_O=attention.c_proj.bias.detach(),
        n_heads=network.config.num_attention_heads,
        scale=attention.scaling,
        mask="causal",
        gain=block.ln_1.weight.detach(),
    )
    return Site(layer, block, attention.c_proj, norm=block.ln_2, input_norm=block.ln_1, feed_forward=block.mlp)


def gpt_neo(network: Any, block: Any, index: int) -> Site:
    """GPT-Neo: global and local layers in turn; logits are not scaled."""
    attention = block.attn.attention
    local = network.config.attention_layers[index] == "local"
    layer = AttentionLayer(
        **linear(Q=attention.q_proj, K=attention.k_proj, V=attention.v_proj, O=attention.out_proj),
        n_heads=network.config.num_heads,
        scale=1.0,
        mask="local" if local else "causal",
        window=network.config.window_size if local else None,
        gain=block.ln_1.weight.detach(),
    )
    return Site(layer, block, attention.out_proj, norm=block.ln_2, input_norm=block.ln_1, feed_forward=block.mlp)


def gpt_neox(network: Any, block: Any, index: int) -> Site:
    """GPT-NeoX, Pythia: each head's query, key and value lie together; the feed-forward part may run beside."""
    config, fused, dense = network.config, block.attention.query_key_value, block.attention.dense
    W_Q, W_K, W_V = _by_head(fused.weight.detach(), config.num_attention_heads)
    b_Q, b_K, b_V = (None,) * 3 if fused.bias is None else _by_head(fused.bias.detach(), config.num_attention_heads)
    layer = AttentionLayer(
        W_Q=W_Q,
        W_K=W_K,
        W_V=W_V,
        b_Q=b_Q,
        b_K=b_K,
        b_V=b_V,
        **linear(O=dense),
        n_heads=config.num_attention_heads,
        scale=block.attention.scaling,
        mask="causal",
        rotate=rotary(network.base_model.rotary_emb),
        gain=block.input_layernorm.weight.detach(),
    )
    return Site(
        layer,
        block,
        output=dense,
        norm=None if config.use_parallel_residual else block.post_attention_layernorm,
        input_norm=block.input_layernorm,
        feed_forward=block.mlp,
        keywords=positions(network.base_model.rotary_emb),
    )


def llama(network: Any, block: Any, index: int) -> Site:
    """Llama, Mistral, Qwen2, Qwen3, Gemma, Phi-3: rotary positions, grouped queries, perhaps norms of q and k."""
    config, attention, table = network.config, block.self_attn, network.base_model.rotary_emb
    window = _window(config, index)
    gain = block.input_layernorm.weight.detach()
    layer = AttentionLayer(
        **grouped(_projections(attention), config.num_attention_heads, config.num_key_value_heads),
        n_heads=config.num_attention_heads,
        scale=attention.scaling,
        mask="causal" if window is None else "local",
        window=window,
        rotate=rotary(table, getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)),
        gain=1 + gain if config.model_type == "gemma" else gain,
    )
    return Site(
        layer,
        block,
        output=attention.o_proj,
        norm=block.post_attention_layernorm,
        input_norm=block.input_layernorm,
        feed_forward=block.mlp,
        keywords=positions(table),
    )


def phi(network: Any, block: Any, index: int) -> Site:
    """Phi-1 and Phi-2: the feed-forward part reads the same normalised token, beside the attention."""
    config, attention, table = network.config, block.self_attn, network.base_model.rotary_emb
    tensors = linear(Q=attention.q_proj, K=attention.k_proj, V=attention.v_proj, O=attention.dense)
    layer = AttentionLayer(
        **grouped(tensors, config.num_attention_heads, config.num_key_value_heads),
        n_heads=config.num_attention_heads,
        scale=attention.scaling,
        mask="causal",
        rotate=rotary(table, getattr(attention, "q_layernorm", None), getattr(attention, "k_layernorm", None)),
        gain=block.input_layernorm.weight.detach(),
    )
    return Site(
        layer,
        block,
        output=attention.dense,
        norm=None,
        input_norm=block.input_layernorm,
        feed_forward=block.mlp,
        keywords=positions(table),
    )


def opt(network: Any, block: Any, index: int) -> Site:
    """OPT: pre-norm, but for the 350M model, which is post-norm.

    Both put all texts of a batch into one row of tokens for the feed-forward part, so its norm has no reading.
    """
    attention, norm = block.self_attn, block.self_attn_layer_norm
    before = network.config.do_layer_norm_before
    layer = AttentionLayer(
        **linear(Q=attention.q_proj, K=attention.k_proj, V=attention.v_proj, O=attention.out_proj),
        n_heads=network.config.num_attention_heads,
        scale=attention.scaling,
        mask="causal",
        gain=norm.weight.detach() if before and norm.weight is not None else None,
    )
    return Site(
        layer,
        block,
        output=attention.out_proj,
        norm=None if before else norm,
        input_norm=norm if before else None,
        feed_forward=block.fc2,
    )


def _projections(attention: Any) -> dict[str, Any]:
    """Return queries, keys, values and outputs, where the first three may be rows of one map (Phi-3)."""
    if hasattr(attention, "q_proj"):
        return linear(Q=attention.q_proj, K=attention.k_proj, V=attention.v_proj, O=attention.o_proj)
    queries = attention.config.num_attention_heads * attention.head_dim
    keys = attention.config.num_key_value_heads * attention.head_dim
    W_Q, W_K, W_V = attention.qkv_proj.weight.detach().split([queries, keys, keys])
    empty = {"b_Q": None, "b_K": None, "b_V": None}
    return {"W_Q": W_Q, "W_K": W_K, "W_V": W_V, **empty, **linear(O=attention.o_proj)}


def _by_head(rows: Any, n_heads: int) -> Any:
    """(n_heads * 3 * d_head, ...), head after head, -> queries, keys, values of all heads."""
    return [part.flatten(0, 1) for part in rows.unflatten(0, (n_heads, 3, -1)).unbind(1)]


def _window(config: Any, index: int) -> int | None:
    """How many tokens a layer sees, where that is limited."""
    types = getattr(config, "layer_types", None)
    if types is not None and types[index] != "sliding_attention":
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window
