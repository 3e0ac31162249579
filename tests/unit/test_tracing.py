"""Traces are sums over real tokens of the real network, whatever the batch; tilt summarises them honestly."""

import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from networks import random_layer, random_model
from test_models import folder  # noqa: F401  (a saved checkpoint with tokenizer)

import companion
from companion import alignment, hooks, tilt, trace
from companion.spectrum import spectrum

TEXTS = [
    "the whale",
    "a b c d e f g",
    "whale whale a",
    "z y x w v u",
    "k l m n o p q r s t u v w x y z a b c d e f g h i j k l",
]


@pytest.fixture(scope="module")
def small(folder):  # noqa: F811
    return companion.load(str(folder))


@pytest.fixture(scope="module")
def decoder(small):
    return companion.from_network(random_model("gpt2").network, small.tokenizer, "gpt2")


def by_hand(model, text, stage, layer, basis):
    """Alignment of each token from kept hidden states, text by text, window by window."""
    parts = []
    for window in model.windows(text):
        x = hooks.states(model.network.base_model, model.sites, torch.tensor([window]), stage)[layer, 0].double()
        parts.append((x @ torch.tensor(basis)).norm(dim=1) / x.norm(dim=1))
    return torch.cat(parts)


@pytest.mark.parametrize("targets", ["own", ("own", "random")])  # few bases, reduced together; many, layer by layer
@pytest.mark.parametrize("order", ["residual", "modulus", "real"])
@pytest.mark.parametrize("which", ["small", "decoder"])
def test_sums_and_risen_counts_are_those_of_kept_hidden_states(request, which, order, targets):
    model = request.getfixturevalue(which)
    table = trace(model, TEXTS, order=order, targets=targets).query("target == 'own'")
    table = table.set_index(["layer", "stage", "text"])
    assert set(table.index.unique("stage")) == {"in", "attention", "norm", "out"} | (
        {"input_norm"} if which == "decoder" else {"ffn"}
    )
    for (layer, stage, text), row in table.iterrows():
        basis = spectrum(model.layers[layer].F, order=order).basis
        gamma = by_hand(model, TEXTS[text], stage, layer, basis)
        assert row["n"] == len(gamma)
        assert row["gamma"] == pytest.approx(float(gamma.sum()), abs=1e-5)
        assert row["risen"] == int((gamma > by_hand(model, TEXTS[text], "in", layer, basis)).sum())


@pytest.mark.parametrize("targets", ["own", ("own", "random")])
@pytest.mark.parametrize("inference", [False, True])
def test_a_stream_that_is_changed_between_two_layers_is_read_as_changed(decoder, inference, targets):
    block = decoder.sites[1].block
    bump = torch.linspace(-1, 1, decoder.layers[1].d_model)
    handle = block.register_forward_pre_hook(lambda _, inputs: (inputs[0].add_(bump),))
    try:
        with torch.inference_mode(inference):
            table = trace(decoder, TEXTS[:1], targets=targets).query("target == 'own'").set_index(["layer", "stage"])
        gamma = by_hand(decoder, TEXTS[0], "in", 1, spectrum(decoder.layers[1].F).basis)
    finally:
        handle.remove()
    assert table["gamma"][1, "in"] == pytest.approx(float(gamma.sum()), abs=1e-5)
    assert table["gamma"][1, "in"] != pytest.approx(
        float(by_hand(decoder, TEXTS[0], "in", 1, spectrum(decoder.layers[1].F).basis).sum()), abs=1e-3
    )


@pytest.mark.parametrize("which", ["small", "decoder"])
def test_batch_size_and_padding_change_no_number(request, which):
    model = request.getfixturevalue(which)
    alone, together = (trace(model, TEXTS, batch_size=size) for size in (1, 8))
    keys = ["layer", "stage", "target", "text"]
    alone, together = (t.set_index(keys).sort_index() for t in (alone, together))
    np.testing.assert_allclose(alone["gamma"], together["gamma"], atol=1e-5)
    pd.testing.assert_series_equal(alone["n"], together["n"])
    pd.testing.assert_series_equal(alone["risen"], together["risen"])


@pytest.mark.parametrize("by", ["text", "token"])
@pytest.mark.parametrize("targets", ["own", ("own", "random")])
def test_how_many_batches_are_reduced_together_changes_no_number(small, monkeypatch, by, targets):
    tables = []
    for waiting in (1, 20, 2**13):  # each batch alone and memory that grows; a few together; all together
        monkeypatch.setattr("companion.reducer._WAITING", waiting)
        tables.append(trace(small, TEXTS * 3, by=by, targets=targets, batch_size=2))
    for table in tables[:2]:
        pd.testing.assert_frame_equal(table, tables[2], atol=1e-5)


def test_a_network_that_leaves_out_a_layer_is_refused(decoder, monkeypatch):
    monkeypatch.setattr(decoder.network.base_model, "h", decoder.network.base_model.h[:-1])
    with pytest.raises(companion.CompanionError, match=r"10 of 15 readings.*does not run all its layers"):
        trace(decoder, TEXTS, targets="own")


def test_the_token_table_adds_up_to_the_text_table(small):
    everything = ("own", "random", "other")
    text = trace(small, TEXTS).set_index(["layer", "stage", "target", "text"])["gamma"].sort_index()
    token = trace(small, TEXTS, by="token", targets=everything)
    summed = token.groupby(["layer", "stage", "target", "text"], observed=True)["gamma"].sum().sort_index()
    np.testing.assert_allclose(summed, text, atol=1e-4)
    long = token[(token.text == 4) & (token.layer == 0) & (token.stage == "in") & (token.target == "own")]
    assert long["position"].tolist() == list(range(len(long)))
    assert long["token"].iloc[0] == "[CLS]"
    assert trace(small, TEXTS, by="token")["target"].unique().tolist() == ["own"]


def test_a_long_text_keeps_its_order_token_by_token(small):
    text = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3  # windows of 32, 32 and 20 tokens
    table = trace(small, ["the whale", text], by="token").query("text == 1 and layer == 1 and stage == 'attention'")
    ids = [token for window in small.windows(text) for token in window]
    assert table["token"].tolist() == small.tokenizer.convert_ids_to_tokens(ids)
    assert table["position"].tolist() == list(range(len(ids)))
    basis = spectrum(small.layers[1].F).basis
    np.testing.assert_allclose(table["gamma"], by_hand(small, text, "attention", 1, basis), atol=1e-5)


def test_targets_are_named_and_have_the_dimension_of_the_layers_own(small):
    names = set(trace(small, TEXTS)["target"].unique())
    assert names == {"own"} | {f"random-{i}" for i in range(16)} | {f"layer-{i}" for i in range(3)}
    for layer in range(3):
        rows = trace(small, TEXTS).query("layer == @layer")
        assert f"layer-{layer}" not in set(rows["target"].astype(str))


def test_shared_layers_have_no_other_layers(small):
    model = random_model("albert", tokenizer=small.tokenizer)
    assert "layer-0" not in set(trace(model, ["the whale"])["target"])
    with pytest.raises(companion.CompanionError, match="all layers share their weights"):
        trace(model, ["the whale"], targets="other")


def test_a_generator_of_texts_gives_the_same_table(small):
    pd.testing.assert_frame_equal(trace(small, (t for t in TEXTS)), trace(small, TEXTS))


def test_a_trace_keeps_no_hidden_state(small, monkeypatch):
    """However many texts pass, only the readings around the layer at work are alive."""
    readings, alive = [], []
    see = companion.tracing.Reducer.see

    def watched(self, layer, stage, x):
        readings.append(weakref.ref(x))
        alive.append(sum(reading() is not None for reading in readings))
        see(self, layer, stage, x)

    monkeypatch.setattr("companion.tracing.Reducer.see", watched)
    trace(small, [f"whale {letter}" for letter in "abcdefgh" * 10], batch_size=1)
    assert len(readings) == 80 * 3 * 5
    assert max(alive) <= 6
    assert not any(reading() is not None for reading in readings)


def test_hooks_are_gone_after_an_error(small, monkeypatch):
    def fail(*_):
        raise RuntimeError("broken reading")

    monkeypatch.setattr("companion.tracing.Reducer.see", fail)
    with pytest.raises(RuntimeError, match="broken reading"):
        trace(small, TEXTS)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in small.network.modules())


def test_a_half_precision_network_is_reduced_in_float32(small):
    half = companion.from_network(random_model("gpt2").network.bfloat16(), small.tokenizer, "half")
    full = companion.from_network(random_model("gpt2").network, small.tokenizer, "full")
    low, high = (tilt(trace(model, TEXTS, targets="own")) for model in (half, full))
    np.testing.assert_allclose(low["gamma"], high["gamma"], atol=0.02)


def test_alignment_is_a_length_share_between_zero_and_one():
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    gamma = alignment(x, basis)
    P = torch.tensor(basis @ basis.T)
    torch.testing.assert_close(gamma, (x @ P).norm(dim=-1) / x.norm(dim=-1))
    torch.testing.assert_close(alignment(-7 * x, basis), gamma)
    assert alignment(torch.tensor(basis.T), basis).min() > 1 - 1e-12
    with pytest.raises(companion.CompanionError, match=r"\(5, 2\)"):
        alignment(x, np.ones((5, 2)))


def made_up_trace(texts, tokens, shift, seed):
    """A trace whose tokens within a text move together: all the spread is between texts."""
    rng = np.random.default_rng(seed)
    rows = []
    for text in range(texts):
        risen = round(tokens * np.clip(0.5 + shift + 0.3 * rng.standard_normal(), 0, 1))
        for stage in ("in", "attention"):
            rows.append(("m", 0, stage, "own", text, tokens, tokens * 0.1, 0 if stage == "in" else risen))
    return pd.DataFrame(rows, columns=["model", "layer", "stage", "target", "text", "n", "gamma", "risen"])


def test_intervals_respect_that_tokens_of_one_text_are_not_independent():
    """Ten times the tokens in the same texts must not narrow the interval."""
    few, many = (tilt(made_up_trace(30, n, 0.0, seed=3)) for n in (100, 10_000))
    width = [float((t["rho_high"] - t["rho_low"]).iloc[0]) for t in (few, many)]
    assert width[1] == pytest.approx(width[0], rel=0.1)
    assert width[0] > 0.1


def test_the_interval_covers_the_truth_nearly_as_often_as_it_says():
    hits = 0
    for seed in range(200):
        row = tilt(made_up_trace(40, 50, 0.0, seed), resamples=300).iloc[0]
        hits += row["rho_low"] <= 0.5 <= row["rho_high"]
    assert 0.88 <= hits / 200 <= 0.99


def test_tilt_is_the_mean_over_tokens_and_its_nulls_come_from_their_targets(small):
    table = trace(small, TEXTS)
    summary = tilt(table)
    after = table[(table.stage == "attention") & (table.layer == 1)]
    own = after[after.target == "own"]
    assert summary["gamma"][1] == pytest.approx(own["gamma"].sum() / own["n"].sum())
    assert summary["rho"][1] == pytest.approx(own["risen"].sum() / own["n"].sum())
    null = after[after.target.astype(str).str.startswith("random")]
    assert summary["gamma_null"][1] == pytest.approx(null["gamma"].sum() / null["n"].sum())
    other = after[after.target.astype(str).str.startswith("layer")]
    assert summary["rho_other"][1] == pytest.approx(other["risen"].sum() / other["n"].sum())
    assert (summary["gamma_low"] <= summary["gamma"]).all() and (summary["gamma"] <= summary["gamma_high"]).all()
    assert summary["texts"].tolist() == [5] * 3


def test_tilt_takes_a_token_table_and_leaves_missing_nulls_empty(small):
    by_token, by_text = tilt(trace(small, TEXTS, by="token")), tilt(trace(small, TEXTS, targets="own"))
    np.testing.assert_allclose(by_token["rho"], by_text["rho"])
    np.testing.assert_allclose(by_token["gamma"], by_text["gamma"], atol=1e-6)
    assert by_token[["gamma_null", "rho_null", "gamma_other", "rho_other"]].isna().all(axis=None)


def test_excess_is_own_minus_null_with_a_paired_interval(small):
    table = trace(small, TEXTS)
    summary, more = tilt(table), companion.excess(table, over="other")
    np.testing.assert_allclose(more["rho"], summary["rho"] - summary["rho_other"])
    np.testing.assert_allclose(more["gamma"], summary["gamma"] - summary["gamma_other"])
    assert (more["rho_low"] <= more["rho"]).all() and (more["rho"] <= more["rho_high"]).all()
    with pytest.raises(companion.CompanionError, match="no target 'random'"):
        companion.excess(trace(small, TEXTS, targets="own"), over="random")


def test_one_text_has_no_interval(small):
    assert tilt(trace(small, TEXTS[:1]))[["gamma_low", "rho_high"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: trace(m, []), "empty"),
        (lambda m: trace(m, ["whale", ""]), "''"),
        (lambda m: trace(m, "whale"), "single string"),
        (lambda m: trace(m, ["whale"], order="size"), "order='size'"),
        (lambda m: trace(m, ["whale"], by="word"), "by='word'"),
        (lambda m: trace(m, ["whale"], targets="mine"), "'mine'"),
        (lambda m: trace(m, ["whale"], batch_size=0), "batch_size=0"),
        (lambda m: tilt(pd.concat([trace(m, ["whale"]).assign(model=name) for name in "ab"])), "2 models"),
        (lambda m: m.states("whale", "inside"), "'inside'"),
        (lambda m: m.states("whale", "input_norm"), "input_norm"),
    ],
)
def test_bad_input_is_refused_with_its_value(small, call, says):
    with pytest.raises(companion.CompanionError) as error:
        call(small)
    assert says in str(error.value)


def test_an_undetermined_eigenspace_stops_a_trace(small):
    layer = random_layer(24, 4)
    object.__setattr__(layer, "W_O", torch.linalg.inv(layer.W_V))  # F = I: every direction is an eigenvector
    site = small.sites[0]
    broken = companion.Model(
        "broken", small.network, small.tokenizer, [type(site)(layer, site.block, site.output, site.norm)], {}
    )
    with pytest.raises(companion.CompanionError, match="not determined"):
        trace(broken, ["whale"])


def test_other_matrices_take_the_place_of_the_layers_own(small):
    d = small.layers[0].d_model
    matrices = [torch.diag(torch.arange(d, dtype=torch.float64).roll(i)) for i in range(len(small.layers))]
    table = trace(small, TEXTS, targets="own", matrices=matrices).set_index(["layer", "stage", "text"])
    for (layer, stage, text), row in table.iterrows():
        basis = spectrum(matrices[layer]).basis
        assert row["gamma"] == pytest.approx(float(by_hand(small, TEXTS[text], stage, layer, basis).sum()), abs=1e-5)


def test_matrices_and_draws_that_do_not_fit_are_refused(small):
    with pytest.raises(companion.CompanionError, match="1 matrices do not fit 3 layers"):
        trace(small, TEXTS, matrices=[small.layers[0].F])
    with pytest.raises(companion.CompanionError, match="draws=0"):
        trace(small, TEXTS, draws=0)


def test_more_draws_keep_the_first_ones(small):
    few, many = (trace(small, TEXTS, targets="random", draws=draws) for draws in (3, 9))
    keys = ["layer", "stage", "target", "text"]
    assert many["target"].nunique() == 9
    joined = few.merge(many.astype({"target": str}), on=keys, suffixes=("_few", "_many"))
    assert len(joined) == len(few)
    np.testing.assert_allclose(joined["gamma_few"], joined["gamma_many"], atol=1e-5)
