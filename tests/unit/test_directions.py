"""Directions with a meaning are what their definition says, computed another way."""

import pytest
import torch
from networks import random_model, words

import companion
from companion import direction, promoted, word_tokens
from companion.errors import SteeringError, TextError

TEXTS = ["a b c d e", "k l m n"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "phi", "bert", "albert"])
def test_what_raises_words_is_what_raises_them(name):
    model = random_model(name, tokenizer=words())
    d = direction(model, words=["a", "q"], texts=TEXTS)
    ids = list(word_tokens(model, ["a", "q"]).values())

    @torch.no_grad()
    def lead():
        total = 0.0
        for text in TEXTS:
            logits = model.network(model.ids(text)).logits.double()
            total += float((logits[..., ids].mean(-1) - logits.mean(-1)).sum())
        return total

    def slope(v, step=0.02):
        with companion.added(model, v, step):
            up = lead()
        with companion.added(model, v, -step):
            return (up - lead()) / (2 * step)

    ahead = slope(d)
    assert ahead > 0
    for seed in range(5):
        v = torch.randn(len(d), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        v -= (v @ d) * d
        assert abs(slope(v)) < 0.05 * ahead  # a gradient: nothing across it changes the lead


def test_behind_a_layernorm_it_has_no_part_along_the_ones_vector_and_the_gain_is_in_it():
    model = random_model("gpt2", tokenizer=words())
    (token,) = word_tokens(model, ["a"]).values()
    d = direction(model, words=["a"], texts=["c"])
    assert abs(float(d.sum())) < 1e-4
    # In closed form, for one token x: the LayerNorm's derivative, transposed, on gain times unembedding.
    W, norm = model.network.lm_head.weight.double(), model.network.transformer.ln_f
    g = norm.weight.double() * (W[token] - W.mean(0))
    x = model.states("c", "out")[-1, 0].double()
    y = (x - x.mean()) / x.std(unbiased=False)
    expected = g - g.mean() - y * (y @ g) / len(y)
    torch.testing.assert_close(d, expected / expected.norm(), atol=1e-4, rtol=1e-4)


def test_between_two_kinds_of_text_it_is_the_difference_of_their_means():
    model = random_model("bert", tokenizer=words())
    found = direction(model, texts=TEXTS, against=["x y z"], layer=1)
    tokens = torch.cat([model.states(text, "out")[1] for text in TEXTS]).double()
    expected = tokens.mean(0) - model.states("x y z", "out")[1].double().mean(0)
    torch.testing.assert_close(found, expected / expected.norm())


def test_the_eigenvector_of_a_layer_is_its_eigenvector():
    model = random_model("gpt2", seed=1)
    found = [direction(model, eigenvector=layer) for layer in range(3)]
    for layer, d in zip(model.layers, found, strict=True):
        basis = torch.from_numpy(companion.spectrum(layer.F, 1).basis)
        assert float((basis.T @ d).norm()) == pytest.approx(1)
        assert float(d.norm()) == pytest.approx(1)


def test_words_are_looked_up_as_they_stand_in_a_sentence():
    gpt2, minilm = companion.load("zoo/gpt2"), companion.load("minilm")
    ids = word_tokens(gpt2, ["whale", "harpooneer"])
    assert list(ids) == ["whale"]  # the other is several tokens
    assert gpt2.tokenizer.decode(ids["whale"]) == " whale"
    assert minilm.tokenizer.decode(word_tokens(minilm, ["whale"])["whale"]) == "whale"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "give words and texts"),
        ({"words": ["a"]}, "give words and texts"),
        ({"words": ["a"], "texts": TEXTS, "against": TEXTS}, "give words and texts"),
        ({"texts": TEXTS, "eigenvector": 1}, "give words and texts"),
        ({"words": ["whale"], "texts": TEXTS}, "none of whale is a single token"),
        ({"words": [], "texts": TEXTS}, "none of no words"),
        ({"texts": TEXTS, "against": TEXTS}, "no direction from one to the other"),
        ({"texts": [], "against": TEXTS}, "empty"),
        ({"eigenvector": 9}, "layer 9 is out of range"),
        ({"eigenvector": 0, "layer": 9}, "layer 9 is out of range"),
    ],
)
def test_what_gives_no_direction_is_refused(arguments, says):
    with pytest.raises(companion.CompanionError, match=says):
        direction(random_model("gpt2", tokenizer=words()), **arguments)


def test_without_a_head_or_a_tokenizer_words_mean_nothing(minilm):
    with pytest.raises(SteeringError, match="minilm has no output head"):
        direction(minilm, words=["whale"], texts=["A whale."])
    with pytest.raises(SteeringError, match="without a tokenizer"):
        word_tokens(random_model("gpt2"), ["a"])
    with pytest.raises(SteeringError, match="minilm has no output head or no tokenizer"):
        promoted(minilm, torch.ones(384))


@pytest.mark.parametrize("name", ["zoo/gpt2", "zoo/bert", "rxnmapper"])
def test_a_state_promotes_the_words_that_the_network_itself_gives_it(name):
    model = companion.load(name)
    text = "CCO" if name == "rxnmapper" else "It was the whale"
    states = model.states(text, "out")[-1]
    with torch.no_grad():
        best = model.network(model.ids(text)).logits[0].topk(5).indices
    for state, tokens in zip(states, best, strict=True):
        assert promoted(model, state, 5) == [model.tokenizer.decode([token]).strip() for token in tokens.tolist()]


def test_lists_of_words_are_known_by_their_side():
    sea, parlour = companion.data.words("sea"), companion.data.words("parlour")
    assert len(sea) == len(parlour) == 80
    assert sea[0] == "whale" and "sister" in parlour and not set(sea) & set(parlour)
    with pytest.raises(TextError, match="there are no words 'space'; use sea, parlour"):
        companion.data.words("space")
