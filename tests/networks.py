"""Small random networks of every family, odd ones included."""

import torch
import transformers as tf

import companion


def random_network(config, seed=0):
    """A network with weights of size one over the root of their width, so that attention is far from uniform."""
    torch.manual_seed(seed)
    cls = tf.AutoModelForCausalLM if config.model_type.startswith("gpt") else tf.AutoModelForMaskedLM
    network = cls.from_config(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "embed" in name or "wte" in name or "wpe" in name:
                parameter.normal_()
            elif parameter.ndim == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            elif "norm" not in name.lower() and "ln_" not in name:
                parameter.normal_(std=0.3)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return network.eval()


_BERT = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "vocab_size": 60,
    "max_position_embeddings": 32,
}
_GPT = {"n_embd": 24, "n_layer": 3, "vocab_size": 60, "n_positions": 32, "n_head": 4}
_NEO = {
    "hidden_size": 24,
    "num_layers": 4,
    "vocab_size": 60,
    "max_position_embeddings": 32,
    "num_heads": 3,
    "attention_types": [[["global", "local"], 2]],
}

CONFIGS = {
    "bert": tf.BertConfig(**_BERT, num_attention_heads=4),
    "bert-one-head": tf.BertConfig(**_BERT, num_attention_heads=1),
    "bert-causal": tf.BertConfig(**_BERT, num_attention_heads=3, is_decoder=True),
    "albert": tf.AlbertConfig(**_BERT, num_attention_heads=4, embedding_size=10),
    "albert-two-groups-two-inner": tf.AlbertConfig(
        **(_BERT | {"num_hidden_layers": 4}),
        num_attention_heads=2,
        embedding_size=10,
        num_hidden_groups=2,
        inner_group_num=2,
    ),
    "gpt2": tf.GPT2Config(**_GPT),
    "gpt2-inverse-layer-scale": tf.GPT2Config(**_GPT, scale_attn_by_inverse_layer_idx=True),
    "gpt2-unscaled": tf.GPT2Config(**_GPT, scale_attn_weights=False),
    "gpt-neo-short-window": tf.GPTNeoConfig(**_NEO, window_size=3),
    "gpt-neo-window-longer-than-text": tf.GPTNeoConfig(**_NEO, window_size=30),
}


def random_model(name="bert", seed=0, tokenizer=None):
    return companion.from_network(random_network(CONFIGS[name], seed), tokenizer, name)


def random_layer(d=6, n_heads=2, seed=0, dtype=torch.float64, size=1.0, **options):
    generator = torch.Generator().manual_seed(seed)
    matrices = {f"W_{letter}": size * torch.randn(d, d, generator=generator, dtype=dtype) / d**0.5 for letter in "QKVO"}
    return companion.AttentionLayer(**matrices, n_heads=n_heads, **options)
