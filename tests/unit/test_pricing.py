"""What steering costs is computed as it is defined, and generation obeys it with and without a cache."""

import math

import numpy as np
import pytest
import torch
import transformers
from networks import random_model, words

import companion
from companion import added, continuations, price, raised, steered, strength_at, text_measures
from companion.errors import SteeringError, TextError

TEXTS = ["a b c d e f", "k l m"]


@pytest.fixture(scope="module")
def gpt2():
    return companion.load("zoo/gpt2")


@pytest.fixture(scope="module")
def edit(gpt2):
    """Towards the sea, with a reading that all calibration tokens read as positive."""
    texts = companion.data.texts("english")[::8]
    d = companion.direction(gpt2, words=companion.data.words("sea"), texts=texts)
    p = companion.reading(gpt2, texts, kind="widest")
    return lambda strength: steered(gpt2, d, strength, reading=p)


def test_the_price_is_what_its_definition_says():
    model = random_model("gpt2", tokenizer=words())
    model.network.requires_grad_(False)
    ids = [3, 7]
    table = price(model, TEXTS, {"up": lambda: raised(model, ids, 1.5)}, ids).set_index("text")
    for number, text in enumerate(TEXTS):
        tokens = model.ids(text)
        p = torch.distributions.Categorical(logits=model.network(tokens).logits[0, :-1].double())
        logits = p.logits.clone()
        logits[:, ids] += 1.5
        q = torch.distributions.Categorical(logits=logits)
        row = table.loc[number]
        assert row["kl"] == pytest.approx(float(torch.distributions.kl_divergence(q, p).mean()), rel=1e-4)
        assert row["nats"] == pytest.approx(float(-q.log_prob(tokens[0, 1:]).mean()), rel=1e-4)
        assert row["nats_before"] == pytest.approx(float(-p.log_prob(tokens[0, 1:]).mean()), rel=1e-4)
        assert row["share"] == pytest.approx(float(q.probs[:, ids].sum(-1).mean()), rel=1e-4)
        assert row["share_before"] == pytest.approx(float(p.probs[:, ids].sum(-1).mean()), rel=1e-4)
        mixed = torch.distributions.Categorical(probs=q.probs.mean(0))
        assert row["spread"] == pytest.approx(float(mixed.entropy() - q.entropy().mean()), abs=1e-4)
        assert row["tokens"] == tokens.shape[1] - 1


def test_no_edit_costs_nothing(gpt2):
    table = price(gpt2, ["It was the whale, and the sea went on."], {"none": lambda: raised(gpt2, [1], 0.0)}, [1])
    assert table["kl"][0] == 0
    assert table["nats"][0] == table["nats_before"][0]


def test_at_full_alignment_the_next_word_does_not_depend_on_the_text(gpt2, edit):
    texts = companion.data.texts("english")[:24:8]  # calibrated on: every token reads positive
    table = price(gpt2, texts, {"none": lambda: edit(0.0), "full": lambda: edit(1e5)}).set_index(["edit", "text"])
    assert table.loc["none", "spread"].min() > 1
    assert table.loc["full", "spread"].max() < 0.01


def test_the_strength_that_costs_so_much_costs_so_much(gpt2, edit):
    texts = companion.data.texts("heldout")[:2]
    for kl in (0.05, 0.8):
        strength = strength_at(gpt2, texts, edit, kl)
        assert price(gpt2, texts, {"": lambda strength=strength: edit(strength)})["kl"].mean() == pytest.approx(
            kl, rel=0.02
        )
    with pytest.raises(SteeringError, match="moves zoo/gpt2 by 50 nats a token"):
        strength_at(gpt2, texts, edit, 50)


@pytest.mark.parametrize("name", ["gpt2", "gpt-neo-short-window", "llama", "phi", "opt"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=["greedy", "beams", "sampled"])
@pytest.mark.filterwarnings("ignore:the values of this layer do not carry")
def test_steered_generation_is_the_same_with_and_without_a_cache(name, options):
    model = random_model(name, tokenizer=words())
    # Padding on the left, as batches of prompts have it.
    ids = torch.tensor([[0, 0, 4, 5, 6], [7, 8, 9, 10, 11]])
    mask = (ids > 0).long()
    d = torch.randn(model.layers[0].d_model, generator=torch.Generator().manual_seed(0))
    written = []
    for cache in (True, False):
        torch.manual_seed(0)
        with steered(model, d, 20.0):
            out = model.network.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=8,
                min_new_tokens=8,
                use_cache=cache,
                pad_token_id=0,
                **{"do_sample": False} | options,
            )
        written.append(out)
    assert torch.equal(*written)
    unsteered = model.network.generate(
        ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, pad_token_id=0, do_sample=False
    )
    assert not torch.equal(written[0], unsteered)


def test_the_first_generated_token_already_obeys_in_a_padded_batch_as_alone(gpt2, edit):
    prompts = ["She opened the letter from her sister.", "The"]
    alone = []
    with edit(1e5):
        for prompt in prompts:
            ids = gpt2.ids(prompt)
            alone.append(int(gpt2.network(ids).logits[0, -1].argmax()))
            first = gpt2.network.generate(ids, max_new_tokens=1, do_sample=False, pad_token_id=0)[0, -1]
            assert int(first) == alone[-1]
    assert len(set(alone)) == 1  # whatever the prompt
    unsteered = {int(gpt2.network(gpt2.ids(prompt)).logits[0, -1].argmax()) for prompt in prompts}
    assert unsteered != set(alone)


def test_streamed_tokens_are_the_generated_ones(gpt2, edit):
    class Heard(transformers.generation.BaseStreamer):
        def __init__(self):
            self.tokens = []

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.ended = True

    heard = Heard()
    with edit(5.0):
        out = gpt2.network.generate(
            gpt2.ids("The captain"), streamer=heard, max_new_tokens=10, do_sample=False, pad_token_id=0
        )
    assert heard.tokens == out[0].tolist() and heard.ended


def test_continuations_are_drawn_from_the_networks_own_distribution_and_leave_the_generator_alone(gpt2):
    state = torch.random.get_rng_state()
    first = continuations(gpt2, ["The captain", "She said that it was"], tokens=20)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first == continuations(gpt2, ["The captain", "She said that it was"], tokens=20)
    assert first != continuations(gpt2, ["The captain", "She said that it was"], tokens=20, seed=1)
    assert all(len(gpt2.tokenizer(text)["input_ids"]) >= 15 for text in first)


def test_measures_of_a_text():
    measures = text_measures("The whale! the whale, the sea.", ["whale", "sea"])
    assert measures["target"] == pytest.approx(3 / 6)
    assert measures["diversity"] == pytest.approx(3 / 5)  # "the whale" and "whale the" twice
    assert measures["repetition"] == pytest.approx(3 / 6)
    assert text_measures("") == {"target": 0, "diversity": 0, "repetition": 0}


def test_encoders_and_networks_without_a_head_have_no_price(minilm, gpt2):
    with pytest.raises(SteeringError, match="minilm is not causal"):
        price(minilm, ["A whale."], {})
    bare = companion.from_network(gpt2.network.transformer, gpt2.tokenizer, "bare")
    with pytest.raises(SteeringError, match="bare has no output head"):
        continuations(bare, ["A whale."])
    with pytest.raises(TextError, match="fewer than two tokens"):
        price(random_model("gpt2", tokenizer=words()), ["a"], {})
    with pytest.raises(TextError, match="fewer than two tokens"):
        strength_at(random_model("gpt2", tokenizer=words()), ["a"], None, 0.1)


def test_a_distribution_that_no_longer_moves_has_finite_price():
    model = random_model("gpt2", tokenizer=words())
    d = torch.randn(24, generator=torch.Generator().manual_seed(0))
    table = price(model, TEXTS, {"far": lambda: added(model, d, 1e6)})
    assert np.isfinite(table.drop(columns="edit").to_numpy()).all()
    assert math.isfinite(table["kl"].sum())
