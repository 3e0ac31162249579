"""Small random networks of every family, odd ones included."""

import copy

import tokenizers
import torch
import transformers as tf

import companion


def random_network(config, seed=0):
    """A network with weights of size one over the root of their width, so that attention is far from uniform."""
    torch.manual_seed(seed)
    masked = type(config) in tf.MODEL_FOR_MASKED_LM_MAPPING
    cls = tf.AutoModelForMaskedLM if masked else tf.AutoModelForCausalLM
    network = cls.from_config(copy.deepcopy(config))
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
_ROTARY = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 60,
    "max_position_embeddings": 32,
}
_GROUPED = _ROTARY | {"num_key_value_heads": 2}
_OPT = {
    "hidden_size": 24,
    "word_embed_proj_dim": 24,
    "ffn_dim": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 60,
    "max_position_embeddings": 32,
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
    "roberta": tf.RobertaConfig(**_BERT, num_attention_heads=4, pad_token_id=1),
    "xlm-roberta": tf.XLMRobertaConfig(**_BERT, num_attention_heads=2, pad_token_id=1),
    "distilbert": tf.DistilBertConfig(
        dim=24, hidden_dim=40, n_layers=3, n_heads=4, vocab_size=60, max_position_embeddings=32
    ),
    "llama": tf.LlamaConfig(**_GROUPED),
    "llama-own-head-size-and-biases": tf.LlamaConfig(**_GROUPED, head_dim=10, attention_bias=True),
    "mistral-short-window": tf.MistralConfig(**_GROUPED, sliding_window=3),
    "mistral-no-window": tf.MistralConfig(**_GROUPED, sliding_window=None),
    "qwen2": tf.Qwen2Config(**_GROUPED),
    "qwen2-two-layers-of-three-slide": tf.Qwen2Config(
        **_GROUPED, use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "qwen3": tf.Qwen3Config(**_GROUPED, head_dim=8),
    "gemma-one-group": tf.GemmaConfig(**(_GROUPED | {"num_key_value_heads": 1}), head_dim=10),
    "phi": tf.PhiConfig(**_ROTARY, partial_rotary_factor=0.5),
    "phi-grouped-with-norms": tf.PhiConfig(**_GROUPED, qk_layernorm=True),
    "phi3": tf.Phi3Config(**_GROUPED, pad_token_id=0),
    "phi3-short-window": tf.Phi3Config(**_GROUPED, pad_token_id=0, sliding_window=3),
    "gpt-neox": tf.GPTNeoXConfig(**_ROTARY, rotary_pct=0.5),
    "gpt-neox-in-series": tf.GPTNeoXConfig(**_ROTARY, use_parallel_residual=False),
    "gpt-neox-without-biases": tf.GPTNeoXConfig(**_ROTARY, attention_bias=False),
    "opt": tf.OPTConfig(**_OPT),
    "opt-post-norm": tf.OPTConfig(**(_OPT | {"word_embed_proj_dim": 10}), do_layer_norm_before=False),
    "opt-plain-norm": tf.OPTConfig(**_OPT, layer_norm_elementwise_affine=False, enable_bias=False),
}


def random_model(name="bert", seed=0, tokenizer=None):
    return companion.from_network(random_network(CONFIGS[name], seed), tokenizer, name)


def random_layer(d=6, n_heads=2, seed=0, dtype=torch.float64, size=1.0, **options):
    generator = torch.Generator().manual_seed(seed)
    matrices = {f"W_{letter}": size * torch.randn(d, d, generator=generator, dtype=dtype) / d**0.5 for letter in "QKVO"}
    return companion.AttentionLayer(**matrices, n_heads=n_heads, **options)


def words(length=32):
    """A tokenizer of one lower-case letter a token, for networks of sixty tokens; it adds none of its own."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=length
    )


_WORDS = ["the", "of", "and", "to", "a", "in", "was", "he", "it", "whale", "ship", "sea", "captain", "boat"]


def save_tokenizer(folder, words=_WORDS, length=32):
    """Write a BERT tokenizer of a few words beside a checkpoint."""
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tf.BertTokenizer(str(folder / "vocab.txt"), model_max_length=length).save_pretrained(folder)
