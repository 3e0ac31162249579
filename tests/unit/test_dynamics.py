"""The paper's map: what it is, what it is not, and where it goes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_layer

import companion
from companion import angles, consensus, orbit, plane_coordinates, power_step, spectrum
from companion.examples import layer_with, matrix_with

MASKS = [{"mask": "full"}, {"mask": "causal"}, {"mask": "local", "window": 2}]


def unit(*shape, seed=0, dtype=torch.float64):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return x / x.norm(dim=-1, keepdim=True)


def step_by_loops(x, layer, radius):
    """The map written out token by token and head by head, straight from its formula."""
    n, width = len(x), layer.W_V.shape[0] // layer.n_heads
    q_width = layer.d_head
    new = []
    for i in range(n):
        seen = range(n) if layer.mask == "full" else range(max(0, i - (layer.window or n) + 1), i + 1)
        y = radius * x[i]
        for h in range(layer.n_heads):
            rows, q_rows = slice(h * width, (h + 1) * width), slice(h * q_width, (h + 1) * q_width)
            q = layer.W_Q[q_rows] @ (radius * x[i])
            logits = torch.stack([layer.scale * q @ (layer.W_K[q_rows] @ (radius * x[j])) for j in seen])
            weights = torch.exp(logits - logits.max())
            weights = weights / weights.sum()
            mixed = sum(w * (layer.W_V[rows] @ (radius * x[j])) for w, j in zip(weights, seen, strict=True))
            y = y + layer.W_O[:, rows] @ mixed
        new.append(y / y.norm())
    return torch.stack(new)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 5),
    heads=st.sampled_from([1, 2, 3, 6]),
    options=st.sampled_from(MASKS),
    radius=st.floats(0.1, 5),
    seed=st.integers(0, 1000),
)
def test_the_map_is_its_formula(n, heads, options, radius, seed):
    layer = random_layer(6, heads, seed, **options)
    x = unit(n, 6, seed=seed + 1)
    torch.testing.assert_close(power_step(x, layer, radius=radius), step_by_loops(x, layer, radius), atol=1e-12, rtol=0)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 6), heads=st.sampled_from([1, 2, 3]), options=st.sampled_from(MASKS), seed=st.integers(0, 1000))
def test_on_consensus_states_the_layer_is_the_power_method_for_I_plus_F(n, heads, options, seed):
    layer = random_layer(6, heads, seed, **options)
    v = unit(6, seed=seed + 1)
    expected = v + layer.F @ v
    expected = (expected / expected.norm()).expand(n, 6)
    torch.testing.assert_close(power_step(v.expand(n, 6), layer, radius=2.0), expected, atol=1e-12, rtol=0)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 6), seed=st.integers(0, 1000))
def test_full_attention_does_not_care_about_the_order_of_tokens(n, seed):
    layer, x = random_layer(6, 2, seed), unit(n, 6, seed=seed + 1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(power_step(x[order], layer), power_step(x, layer)[order], atol=1e-12, rtol=0)


@settings(max_examples=30, deadline=None)
@given(options=st.sampled_from(MASKS), seed=st.integers(0, 1000))
def test_an_orthogonal_change_of_basis_carries_over(options, seed):
    layer, x = random_layer(6, 2, seed, **options), unit(5, 6, seed=seed + 1)
    R = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[0]
    turned = companion.AttentionLayer(
        layer.W_Q @ R.T, layer.W_K @ R.T, layer.W_V @ R.T, R @ layer.W_O, n_heads=2, **options
    )
    torch.testing.assert_close(power_step(x @ R.T, turned), power_step(x, layer) @ R.T, atol=1e-12, rtol=0)


@pytest.mark.parametrize("attention", ["softmax", "uniform"])
@pytest.mark.parametrize("options", MASKS)
def test_leading_dimensions_are_separate_texts(options, attention):
    layer, x = random_layer(6, 3, **options), unit(2, 3, 5, 6)
    together = power_step(x, layer, attention)
    assert together.shape == x.shape
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64))
    for a in range(2):
        for b in range(3):
            torch.testing.assert_close(together[a, b], power_step(x[a, b], layer, attention))


@pytest.mark.parametrize("options", MASKS)
def test_uniform_attention_is_the_mean_over_what_a_token_may_see(options):
    layer, x = random_layer(6, 2, **options), unit(5, 6)
    seen = layer.visible(5).double()
    y = x + (seen / seen.sum(1, keepdim=True)) @ x @ layer.F.T
    torch.testing.assert_close(power_step(x, layer, "uniform"), y / y.norm(dim=1, keepdim=True))


def test_an_explicit_attention_is_used_as_it_is():
    layer, x = random_layer(6, 2), unit(4, 6)
    eye = torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    y = x + x @ layer.F.T
    torch.testing.assert_close(power_step(x, layer, eye), y / y.norm(dim=1, keepdim=True))
    torch.testing.assert_close(power_step(x, layer, layer.weights(x, bias=False)), power_step(x, layer))


def test_biases_enter_only_when_asked():
    biases = {f"b_{letter}": torch.full((6,), 0.3, dtype=torch.float64) for letter in "QKVO"}
    layer, bare, x = random_layer(6, 2, **biases), random_layer(6, 2), unit(4, 6)
    torch.testing.assert_close(power_step(x, layer), power_step(x, bare))
    assert (power_step(x, layer, bias=True) - power_step(x, bare)).abs().max() > 0.05


def test_radius_only_matters_through_the_logits():
    layer, x = random_layer(6, 2), unit(4, 6)
    torch.testing.assert_close(power_step(x, layer, "uniform", radius=9.0), power_step(x, layer, "uniform"))
    assert (power_step(x, layer, radius=9.0) - power_step(x, layer)).abs().max() > 1e-3


def test_the_map_is_differentiable():
    layer, x = random_layer(4, 2), unit(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: power_step(y, layer, radius=2.0), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_dtype_of_the_tokens_decides(dtype):
    layer = random_layer(6, 2, dtype=torch.float32)
    x = unit(4, 6).to(dtype)
    assert power_step(x, layer).dtype == dtype
    loose = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(power_step(x, layer).double(), power_step(unit(4, 6), layer), atol=loose, rtol=0)


def test_an_orbit_starts_at_directions_and_chains_steps():
    first, second, x = random_layer(6, 2, 0), random_layer(6, 2, 1), 3 * unit(4, 6)
    states = orbit(x, [first, second, first])
    assert states.shape == (4, 4, 6)
    torch.testing.assert_close(states[0], unit(4, 6))
    torch.testing.assert_close(states[3], power_step(power_step(power_step(unit(4, 6), first), second), first))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), options=st.sampled_from(MASKS[:2]))
def test_uniform_attention_converges_to_the_dominant_eigenvector_of_I_plus_F(seed, options):
    layer = layer_with(matrix_with([1.5], 8, bulk=0.5, seed=seed), seed=seed, **options)
    end = orbit(unit(6, 8, seed=seed), [layer] * 400, "uniform")[-1]
    assert companion.alignment(end, spectrum(layer.F).basis).min() > 1 - 1e-9
    assert consensus(end).abs() <= 1 + 1e-12


def test_a_complex_dominant_pair_turns_tokens_by_the_argument_of_one_plus_lambda():
    layer = layer_with(matrix_with([0.8 + 1.1j], 6, bulk=0.3, shear=0.8, seed=1))
    states = orbit(unit(5, 6), [layer] * 80, "uniform")[-30:]
    turns = angles(plane_coordinates(states, spectrum(layer.F).vectors[:, 0]))
    torch.testing.assert_close(turns.abs(), torch.full_like(turns, np.angle(1.8 + 1.1j)), atol=1e-8, rtol=0)
    euclid = torch.arccos((states[1:] * states[:-1]).sum(-1))
    assert euclid.std() > 0.05  # in the standard coordinates the steps differ


def test_consensus_is_the_mean_cosine_over_pairs():
    x = 3 * unit(2, 4, 6)
    cosines = torch.nn.functional.cosine_similarity(x[:, :, None], x[:, None], dim=-1)
    expected = (cosines.sum((1, 2)) - 4) / 12
    torch.testing.assert_close(consensus(x), expected)
    with pytest.raises(companion.CompanionError, match="only one"):
        consensus(unit(1, 6))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), shear=st.floats(0, 0.5))
def test_a_made_matrix_has_the_eigenvalues_it_was_asked_for(seed, shear):
    F = matrix_with([2.5, -2.0, 1 + 2j], 10, bulk=0.5, shear=shear, seed=seed)
    values = np.linalg.eigvals(F.numpy())
    leading = values[abs(values) > 1]
    ranked = sorted(leading, key=lambda v: (round(v.real, 3), v.imag))
    np.testing.assert_allclose(ranked, [-2, 1 - 2j, 1 + 2j, 2.5], atol=1e-6)
    assert abs(values[abs(values) <= 1]).max() == pytest.approx(0.5, abs=1e-6)
    torch.testing.assert_close(layer_with(F, n_heads=2, seed=seed).F, F, atol=1e-7, rtol=1e-7)
    with pytest.raises(companion.CompanionError, match="d=1"):
        matrix_with([1j], 1)


def test_a_token_sent_to_zero_has_no_direction():
    eye = torch.eye(3, dtype=torch.float64)
    layer = companion.AttentionLayer(eye, eye, eye, -eye, n_heads=1)
    with pytest.raises(companion.CompanionError, match="to zero"):
        power_step(unit(1, 3), layer)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: power_step(unit(4, 5), random_layer(6)), "(4, 5)"),
        (lambda: power_step(unit(6), random_layer(6)), "(6,)"),
        (lambda: power_step(torch.ones(4, 6, dtype=torch.int64), random_layer(6)), "int64"),
        (lambda: power_step(unit(4, 6), random_layer(6), "sharp"), "'sharp'"),
        (lambda: power_step(unit(4, 6), random_layer(6), torch.ones(1, 4, 4)), "(1, 4, 4)"),
        (lambda: orbit(unit(4, 6), []), "empty"),
        (lambda: orbit(torch.zeros(4, 6), [random_layer(6)]), "zero"),
        (lambda: random_layer(6, n_heads=4), "n_heads=4"),
        (lambda: random_layer(6, mask="diagonal"), "'diagonal'"),
        (lambda: random_layer(6, mask="local"), "window=None"),
        (lambda: random_layer(6, mask="full", window=3), "window=3"),
        (lambda: random_layer(6, b_V=torch.ones(5)), "b_V"),
        (lambda: companion.AttentionLayer(*[torch.ones(4, 6)] * 4, n_heads=2), "W_O"),
        (lambda: companion.AttentionLayer(*[torch.full((4, 4), torch.nan)] * 4, n_heads=2), "NaN"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(call, says):
    with pytest.raises(companion.CompanionError) as error:
        call()
    assert says in str(error.value)


def test_F_follows_an_edit_in_place_and_is_otherwise_kept():
    layer = random_layer(6)
    before = layer.F
    assert layer.F is before
    layer.W_O[0, 0] += 1
    torch.testing.assert_close(layer.F, layer.W_O @ layer.W_V)
    assert not torch.equal(layer.F, before)


def test_clusters_counts_directions_text_by_text():
    a, b = torch.eye(3, dtype=torch.float64)[:2]
    texts = torch.stack([torch.stack(rows) for rows in ([a, 2 * a, 3 * a], [a, b, a], [a, b, -a], [a, -a, -2 * a])])
    assert companion.clusters(texts).tolist() == [1, 2, 3, 2]
    assert companion.clusters(torch.stack([a, a + 1e-2 * b]), tolerance=1e-3) == 1
