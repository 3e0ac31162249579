"""Layers reproduce Hugging Face's own attention, on every family and its odd configurations."""

import pytest
import torch
import transformers
from networks import CONFIGS, random_model, random_network

import companion
from companion import hooks
from companion.adapters import ADAPTERS


@pytest.mark.parametrize("name", CONFIGS)
def test_attention_of_many_tokens_is_the_networks_own(name):
    model = random_model(name)
    ids = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    read = "input_norm" if model.sites[0].input_norm is not None else "in"
    base = model.network.base_model
    x, update, heads = (hooks.states(base, model.sites, ids, stage) for stage in (read, "update", "heads"))
    for index, layer in enumerate(model.layers):
        torch.testing.assert_close(layer.attend(x[index]), update[index], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(layer.heads(x[index]), heads[index], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_stages_are_the_residual_stream_of_the_network(name):
    """Rebuild each stage from the others and from the network's own hidden states."""
    model = random_model(name)
    ids = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    base = model.network.base_model
    stages = {s: hooks.states(base, model.sites, ids, s) for s in model.sites[0].stages}
    torch.testing.assert_close(stages["in"] + stages["update"], stages["attention"])
    torch.testing.assert_close(stages["out"][:-1], stages["in"][1:])
    for i, site in enumerate(model.sites):
        if site.norm is None:
            continue
        torch.testing.assert_close(site.norm(stages["attention"][i]), stages["norm"][i])
    with torch.no_grad():
        hidden = base(input_ids=ids, output_hidden_states=True).hidden_states
    if "albert-two" not in name:  # Hugging Face records an entry a group there, not one a layer
        for i in range(len(model.layers)):
            torch.testing.assert_close(hidden[i], stages["in"][i])
    ends = [getattr(base, name, None) for name in ("ln_f", "norm", "final_layer_norm", "final_layernorm", "decoder")]
    end = next((module for module in ends if module is not None), torch.nn.Identity())
    end = end if not hasattr(end, "layers") else end.final_layer_norm or end.project_out  # OPT
    torch.testing.assert_close(hidden[-1], end(stages["out"][-1]))


def test_gpt2_weights_are_views_so_that_an_edit_reaches_the_network():
    model = random_model("gpt2")
    for layer, block in zip(model.layers, model.network.base_model.h, strict=True):
        assert layer.W_O.data_ptr() == block.attn.c_proj.weight.data_ptr()
        torch.testing.assert_close(layer.W_O, block.attn.c_proj.weight.T)


def test_albert_shares_one_layer_object_in_every_place():
    assert len({id(layer) for layer in random_model("albert").layers}) == 1
    layers = random_model("albert-two-groups-two-inner").layers
    assert [layers.index(layer) for layer in layers] == [0, 1, 0, 1, 4, 5, 4, 5]


def test_gpt_neo_alternates_global_and_local_and_does_not_scale():
    layers = random_model("gpt-neo-short-window").layers
    assert [(layer.mask, layer.window) for layer in layers] == [("causal", None), ("local", 3)] * 2
    assert {layer.scale for layer in layers} == {1.0}
    assert all(layer.b_Q is None and layer.b_K is None and layer.b_V is None for layer in layers)


def test_gpt2_scales_by_the_inverse_of_the_layer_index_when_told_to():
    scales = [layer.scale for layer in random_model("gpt2-inverse-layer-scale").layers]
    torch.testing.assert_close(scales, [6**-0.5, 6**-0.5 / 2, 6**-0.5 / 3])


def test_only_pre_norm_networks_have_a_gain():
    assert random_model("gpt2").layers[0].gain is not None
    assert random_model("bert").layers[0].gain is None


@pytest.mark.parametrize("wrong", ["transposed", "slice"])
def test_the_self_check_catches_a_wrong_adapter(monkeypatch, wrong):
    def site(network, block, index):
        found = right.site(network, block, index)
        W = found.layer.W_O.T.contiguous() if wrong == "transposed" else found.layer.W_K
        object.__setattr__(found.layer, "W_O" if wrong == "transposed" else "W_V", W)
        return found

    right = ADAPTERS["gpt2"]
    monkeypatch.setitem(ADAPTERS, "gpt2", right._replace(site=site))
    with pytest.raises(companion.CompanionError, match="differs from the network's own attention"):
        random_model("gpt2")


_TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 20}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (transformers.XLMConfig(emb_dim=8, n_heads=2, n_layers=1, n_words=20), "albert, bert, distilbert"),
        (transformers.BertConfig(**_TINY, is_decoder=True, add_cross_attention=True), "add_cross_attention"),
        (transformers.BertConfig(**_TINY, position_embedding_type="relative_key"), "relative_key"),
        (transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=20), "neither half"),
        (
            transformers.GemmaConfig(
                **_TINY, num_key_value_heads=1, head_dim=4, use_bidirectional_attention=True, pad_token_id=0
            ),
            "use_bidirectional_attention",
        ),
    ],
)
def test_an_architecture_that_is_not_read_is_refused_with_those_that_are(config, says):
    network = transformers.AutoModel.from_config(config)
    with pytest.raises(companion.CompanionError, match=says):
        companion.from_network(network)


def test_a_quantised_checkpoint_is_refused_with_what_to_load_instead():
    network = random_network(CONFIGS["llama"])
    network.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    with pytest.raises(companion.CompanionError, match="load the checkpoint that it was made from"):
        companion.from_network(network)


def test_heads_of_one_group_share_keys_and_values():
    layer = random_model("llama").layers[0]
    keys, values = (W.unflatten(0, (4, -1)) for W in (layer.W_K, layer.W_V))
    for shared in (keys, values):
        assert torch.equal(shared[0], shared[1])
        assert torch.equal(shared[2], shared[3])
        assert not torch.equal(shared[1], shared[2])


def test_rotary_layers_with_one_token_further_on_see_the_same_differences():
    """Rotary logits depend on the distance between two tokens alone."""
    layer = random_model("phi").layers[0]
    x = torch.randn(1, 32, generator=torch.Generator().manual_seed(0)).expand(9, 32)  # one token nine times
    weights = layer.weights(x)
    logits = weights.log()
    for distance in range(1, 5):
        differences = logits.diagonal(-distance, -2, -1) - logits.diagonal(0, -2, -1)[:, distance:]
        torch.testing.assert_close(differences, differences[:, :1].expand_as(differences), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_application_of_a_layer_is_the_networks_first_layer(name):
    model = random_model(name)
    ids = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(2))
    start, end = (hooks.states(model.network.base_model, model.sites, ids, stage)[0] for stage in ("in", "out"))
    torch.testing.assert_close(hooks.iterate(model.sites[0], start, 1)[1], end)


def test_iterating_a_layer_is_the_network_itself_up_to_its_depth():
    model = random_model("albert")
    ids = torch.randint(0, 60, (1, 7), generator=torch.Generator().manual_seed(2))
    stream = hooks.states(model.network.base_model, model.sites, ids, "in")
    torch.testing.assert_close(hooks.iterate(model.sites[0], stream[0], 2), stream)


def test_weights_that_are_not_finite_are_named():
    network = random_network(CONFIGS["bert"])
    with torch.no_grad():
        network.base_model.encoder.layer[1].intermediate.dense.weight[0, 0] = torch.nan
    with pytest.raises(companion.CompanionError, match=r"layer\.1\.intermediate"):
        companion.from_network(network)


def test_shared_layers_are_counted_anew_after_a_forward_pass_that_broke_off():
    model = random_model("albert")
    base, ids, seen = model.network.base_model, torch.arange(5)[None], []

    def see(layer, _stage, _x):
        seen.append(layer)
        if len(seen) == 2:
            raise InterruptedError

    with hooks.watch(base, model.sites, ["in"], see):
        with pytest.raises(InterruptedError):
            base(input_ids=ids)
        base(input_ids=ids)
    assert seen == [0, 1, 0, 1, 2]
