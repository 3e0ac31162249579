"""Where steered tokens land right after attention is known in closed form, and measured at every stage."""

import numpy as np
import pytest
import torch
from networks import CONFIGS, random_model, words

import companion
from companion import cosines, landing, steered
from companion.errors import SteeringError

TEXTS = ["Call me Ishmael.", "It was the whale, and the sea went on."]
SHARED = ("albert", "albert-two-groups-two-inner")


def some(d, seed=3):
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:the values of this layer do not carry")
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in SHARED])
def test_every_architecture_lands_where_the_closed_form_says_in_every_layer(name):
    model = random_model(name, tokenizer=words())
    for layer, of in enumerate(model.layers):
        d = some(of.d_model)
        found = landing(model, ["a b c d e f g"], d, layer)
        strength = found.strength(0.99)
        with steered(model, d, strength, layer):
            x = model.states("a b c d e f g", "attention")[layer].double()
        measured = ((x @ d) / x.norm(dim=1) / d.norm()).numpy()
        np.testing.assert_allclose(found.cosines(strength), measured, atol=2e-3)
        assert abs(measured).min() > 0.985
        assert (np.sign(measured) == np.sign(found.table["read"].to_numpy())).all()


def test_the_strength_is_the_smallest_that_brings_all_tokens_there(minilm):
    d = some(384)
    found = landing(minilm, TEXTS, d)
    assert abs(found.cosines(found.strength(0.99))).min() == pytest.approx(0.99, abs=1e-9)
    assert found.strength(0.99, share=0.5) < found.strength(0.99)
    assert (abs(found.cosines(found.strength(0.9, share=0.5))) >= 0.9 - 1e-12).mean() >= 0.5
    with pytest.raises(SteeringError, match=r"cosine=1\.0 must lie between"):
        found.strength(1.0)


def test_shared_weights_move_what_reaches_the_last_layer_unless_they_are_unshared():
    model = random_model("albert", tokenizer=words())
    alone = companion.unshared(model)
    d = some(24)
    found = landing(model, ["a b c d e"], d)
    expected = found.cosines(10.0)
    for which, exact in ((model, False), (alone, True)):
        with steered(which, d, 10.0):
            x = which.states("a b c d e", "attention")[-1].double()
        assert np.allclose((x @ d) / x.norm(dim=1) / d.norm(), expected, atol=1e-4) == exact


def test_cosines_are_those_of_kept_states(minilm):
    d = some(384)
    table = cosines(minilm, TEXTS, d, layer=2).set_index(["text", "stage"])
    for number, text in enumerate(TEXTS):
        found = {stage: minilm.states(text, stage)[2] for stage in ("in", "attention", "norm", "ffn", "out")}
        found["head"] = minilm.network(minilm.ids(text))[0][0]
        assert set(found) == set(table.loc[number].index)
        for stage, x in found.items():
            cosine = x.double() @ d / x.double().norm(dim=1) / d.norm()
            row = table.loc[(number, stage)]
            assert row["signed"] == pytest.approx(float(cosine.mean()), abs=1e-5)
            assert row["absolute"] == pytest.approx(float(cosine.abs().mean()), abs=1e-5)
            assert row["smallest"] == pytest.approx(float(cosine.abs().min()), abs=1e-5)
            assert row["plus"] == float((cosine > 0).double().mean())
    with pytest.raises(companion.CompanionError, match="empty"):
        cosines(minilm, [], d)


@pytest.mark.parametrize(
    ("reading", "says"), [(torch.ones(5), r"reading has shape \(5,\)"), (torch.zeros(384), "reading is zero")]
)
def test_a_reading_that_steered_would_refuse_is_refused_here_as_well(minilm, reading, says):
    with pytest.raises(SteeringError, match=says):
        landing(minilm, TEXTS, some(384), reading=reading)
