"""A rank-1 edit does what its formula says, and always leaves the weights as it found them."""

import numpy as np
import pytest
import torch
from networks import CONFIGS, random_model

import companion
from companion import spectrum, steered
from companion.errors import SteeringError
from companion.steering import paper_reading


def direction(d=24, seed=5):
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bits(model):
    return {name: tensor.clone() for name, tensor in model.network.state_dict().items()}


def same(model, before):
    return all(torch.equal(tensor, before[name]) for name, tensor in model.network.state_dict().items())


@pytest.mark.filterwarnings("ignore:the values of this layer do not carry")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_edit_adds_a_rank_one_matrix_to_F_and_goes_without_a_trace(name):
    model = random_model(name)
    layer = model.layers[-1]
    before, F, d = bits(model), layer.F.clone(), direction(layer.d_model)
    unit = d / d.norm()
    # Heads that share their values leave W_V without full rank: then only a part of d can be read.
    readable = layer.W_V.double().T @ paper_reading(layer, unit)
    if len(layer.W_V.unique(dim=0)) >= layer.d_model:
        torch.testing.assert_close(readable, unit)
    with steered(model, d, 3.0):
        torch.testing.assert_close(layer.F, F + 3.0 * torch.outer(unit, readable), atol=1e-4, rtol=1e-4)
        assert not same(model, before)
    assert same(model, before)
    assert torch.equal(model.layers[-1].F, F)


def test_the_principal_eigenvector_tends_to_the_direction_as_the_expansion_says():
    model = random_model("bert").network.double()
    model = companion.from_network(model)
    d = direction() / direction().norm()
    F = model.layers[-1].F.clone()
    errors = []
    for strength in (1e3, 1e4):
        with steered(model, d, strength):
            found = spectrum(model.layers[-1].F, 1)
        v = torch.tensor(found.basis[:, 0])
        v = v / (v @ d)
        first_order = d + (F @ d - d * (d @ F @ d)) / strength
        errors.append(float((v - first_order).norm()))
        assert found.eigenvalues[0].real == pytest.approx(strength, rel=0.01)
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.2)  # what is left is of second order in 1 / strength


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_weights_return_after_an_error_or_an_interrupt(stop):
    model = random_model("gpt2")
    before = bits(model)
    with pytest.raises(stop), steered(model, direction(), 10.0):
        raise stop
    assert same(model, before)


def test_nested_edits_add_up_and_leave_one_by_one():
    model = random_model("albert")  # two layers that share weights: both edits fall on one matrix
    before, a, b = bits(model), direction(seed=1), direction(seed=2)
    with steered(model, a, 5.0, layer=0):
        one = bits(model)
        with steered(model, b, 7.0, layer=2):
            both = model.layers[0].F.clone()
        assert same(model, one)
    assert same(model, before)
    expected = model.layers[0].F + sum(s * torch.outer(d, d) / d.norm() ** 2 for s, d in ((5, a), (7, b)))
    torch.testing.assert_close(both, expected, atol=1e-4, rtol=1e-4)


def test_edits_that_end_out_of_order_still_leave_the_original():
    model = random_model("bert")
    before = bits(model)
    outer, inner = steered(model, direction(seed=1), 5.0), steered(model, direction(seed=2), 7.0)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert not same(model, before)
    inner.__exit__(None, None, None)
    assert same(model, before)


def test_a_generator_left_half_way_restores_when_it_is_closed():
    model = random_model("bert")
    before = bits(model)

    def steps():
        with steered(model, direction(), 5.0):
            yield 1
            yield 2

    generator = steps()
    next(generator)
    assert not same(model, before)
    generator.close()
    assert same(model, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_return_bit_for_bit(dtype):
    model = companion.from_network(random_model("gpt2").network.to(dtype))
    before = bits(model)
    with steered(model, direction(), 100.0):
        assert not same(model, before)
    assert same(model, before)


def test_all_tokens_align_right_after_attention_at_large_strength(minilm):
    d = torch.randn(384, generator=torch.Generator().manual_seed(0))
    text = "It was the whale, and the sea went on as before."
    with steered(minilm, d, 1e6):
        x = minilm.states(text, "attention")[-1]
    cosine = (x @ d) / x.norm(dim=1) / d.norm()
    assert cosine.abs().min() > 0.999


def test_the_papers_reading_solves_its_equation_and_is_least_squares_where_V_is_singular():
    layer = random_model("bert").layers[0]
    d = direction()
    torch.testing.assert_close(layer.W_V.double().T @ paper_reading(layer, d), d, atol=1e-6, rtol=1e-6)
    layer.W_V[0] = layer.W_V[1]
    with pytest.warns(UserWarning, match=r"do not carry \d+% of the direction"):
        p = paper_reading(layer, d)
    expected = np.linalg.pinv(layer.W_V.double().numpy().T) @ d.numpy()
    np.testing.assert_allclose(p, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"direction": torch.ones(23)}, "(23,)"),
        ({"direction": torch.ones(24, 1)}, "(24, 1)"),
        ({"direction": torch.zeros(24)}, "zero"),
        ({"direction": torch.full((24,), torch.nan)}, "NaN"),
        ({"direction": torch.full((24,), torch.inf)}, "infinity"),
        ({"strength": -1.0}, "strength=-1.0"),
        ({"strength": float("inf")}, "strength=inf"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"strength": 1e39}, "overflows"),
        ({"layer": 3}, "layer 3 is out of range: the model has layers 0 to 2"),
        ({"layer": -4}, "layer -4"),
        ({"reading": torch.ones(5)}, "reading has shape (5,)"),
        ({"reading": torch.zeros(24)}, "reading is zero"),
    ],
)
def test_what_cannot_steer_is_refused_before_anything_changes(arguments, says):
    model = random_model("bert")
    before = bits(model)
    with (
        pytest.raises(companion.CompanionError) as error,
        steered(model, **({"direction": direction(), "strength": 1.0} | arguments)),
    ):
        raise AssertionError("the block must not run")
    assert says in str(error.value)
    assert same(model, before)


def test_float16_overflow_is_refused_and_leaves_an_outer_edit_in_force():
    model = companion.from_network(random_model("gpt2").network.half())
    before = bits(model)
    with steered(model, direction(), 10.0):
        one = bits(model)
        with pytest.raises(SteeringError, match=r"float16"), steered(model, direction(), 1e6):
            pass
        assert same(model, one)
    assert same(model, before)
