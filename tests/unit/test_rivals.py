"""What steering is compared with: added vectors, a bias, raised logits, the most sensitive direction."""

import pytest
import torch
from networks import CONFIGS, random_model, words
from scipy.optimize import minimize

import companion
from companion import added, hooks, raised, sensitive
from companion.errors import LayerError, SteeringError

TEXT = "a b c d e f g"


def some(d, seed=3):
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_added_vector_moves_every_token_of_its_layer_and_of_no_layer_before(name):
    model = random_model(name, tokenizer=words())
    before = model.states(TEXT, "out")
    d = some(model.layers[0].d_model)
    with added(model, d, 2.0, layer=1):
        # What is read behind the module is what the next layer gets.
        after = model.states(TEXT, "in")
    torch.testing.assert_close(after[1], before[0])
    torch.testing.assert_close(after[2], (before[1] + 2 * d / d.norm()).to(after), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.states(TEXT, "out"), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bert", "gpt2", "phi", "opt-post-norm"])
def test_added_to_the_attentions_output_it_is_an_edit_of_the_bias(name):
    model = random_model(name, tokenizer=words())
    d = some(model.layers[0].d_model)
    with added(model, d, 2.0, layer=1, where="update"):
        shifted = model.network(model.ids(TEXT)).logits
    bias = model.sites[1].output.bias
    with torch.no_grad():
        bias += (2 * d / d.norm()).float()
    torch.testing.assert_close(model.network(model.ids(TEXT)).logits, shifted, atol=1e-5, rtol=1e-5)


def test_no_change_of_a_distribution_has_more_of_the_words_at_the_same_divergence_than_raised_logits():
    p = torch.softmax(some(6), 0).numpy()
    chosen = [1, 4]
    lifted = torch.log(torch.tensor(p))
    lifted[chosen] += 1.3
    q = torch.softmax(lifted, 0).numpy()

    def divergence(logits):
        other = torch.softmax(torch.tensor(logits), 0).numpy()
        return float((other * (torch.log(torch.tensor(other)) - torch.log(torch.tensor(p))).numpy()).sum()), other

    radius = divergence(lifted.numpy())[0]
    best = minimize(
        lambda logits: -divergence(logits)[1][chosen].sum(),
        torch.log(torch.tensor(p)).numpy(),
        constraints={"type": "ineq", "fun": lambda logits: radius - divergence(logits)[0]},
    )
    assert -best.fun == pytest.approx(q[chosen].sum(), abs=1e-4)


def test_raised_logits_are_raised_and_no_others():
    model = random_model("gpt2", tokenizer=words())
    before = model.network(model.ids(TEXT)).logits.clone()
    with raised(model, [3, 5], 2.5):
        after = model.network(model.ids(TEXT)).logits
    before[..., [3, 5]] += 2.5
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("name", ["gpt2", "albert", "phi"])
def test_the_most_sensitive_direction_is_the_jacobians_first_singular_vector(name):
    model = random_model(name, tokenizer=words())
    texts, d = [TEXT, "k l m"], model.layers[0].d_model
    found, size = sensitive(model, texts, layer=1, steps=500)
    base = model.network.base_model
    rows = []
    for text in texts:

        def output(shift, text=text):
            with hooks.change(base, model.sites, 1, "out", lambda x: x + shift):
                return base(input_ids=model.ids(text))[0].flatten()

        rows.append(torch.autograd.functional.jacobian(output, torch.zeros(d)))
    _, S, Vh = torch.linalg.svd(torch.cat(rows).double())
    assert abs(float(found @ Vh[0])) > 0.999
    assert size == pytest.approx(float(S[0]) / 10**0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda model: added(model, torch.ones(23), 1.0), "(23,)"),
        (lambda model: added(model, torch.ones(24), float("nan")), "strength=nan"),
        (lambda model: added(model, torch.ones(24), 1.0, layer=7), "layer 7 is out of range"),
        (lambda model: added(model, torch.ones(24), 1.0, where="norm"), "where='norm' is unknown"),
        (lambda model: raised(model, [1], float("inf")), "strength=inf"),
    ],
)
def test_what_cannot_be_used_is_refused(use, says):
    with pytest.raises(companion.CompanionError) as error, use(random_model("gpt2")):
        raise AssertionError("the block must not run")
    assert says in str(error.value)


def test_a_network_without_a_head_has_no_logits_to_raise(minilm):
    with pytest.raises(SteeringError, match="minilm has no output head"), raised(minilm, [1], 1.0):
        pass


def test_a_stage_that_is_no_modules_output_cannot_be_replaced():
    model = random_model("bert")
    for stage in ("in", "attention", "input_norm", "nothing"):
        with (
            pytest.raises(LayerError, match=f"stage '{stage}' of layer 1"),
            hooks.change(model.network.base_model, model.sites, 1, stage, lambda x: x),
        ):
            pass
