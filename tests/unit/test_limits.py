"""Limits, rates and bounds in closed form agree with the map itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import random_layer

import companion
from companion.errors import LayerError
from companion.examples import layer_with, matrix_with

seeds = st.integers(0, 10**6)


@given(seeds, st.floats(0.01, 10.0))
@settings(max_examples=40, deadline=None)
def test_the_limit_with_a_bias_is_a_fixed_point_above_the_spectral_radius(seed, size):
    A = np.eye(5) + matrix_with([1.2], 5, bulk=0.5, shear=0.2, seed=seed).numpy()
    c = size * np.random.default_rng(seed).standard_normal(5)
    x, s = companion.affine_limit(A, c)
    assert s > np.abs(np.linalg.eigvals(A)).max()
    np.testing.assert_allclose(A @ x + c, s * x, atol=1e-9 * (1 + s))


def test_the_map_with_biases_ends_at_the_computed_limit():
    F = matrix_with([1.2], 6, bulk=0.4, seed=3)
    plain = layer_with(F, n_heads=2, seed=3)
    generator = torch.Generator().manual_seed(0)
    b_V, b_O = (0.5 * torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    matrices = {name: getattr(plain, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    layer = companion.AttentionLayer(**matrices, b_V=b_V, b_O=b_O, n_heads=2)
    start = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    radius = 1.5
    end = companion.orbit(start, [layer] * 300, bias=True, radius=radius)[-1]
    limit, _ = companion.affine_limit(torch.eye(6) + F, (layer.W_O @ b_V + b_O) / radius)
    np.testing.assert_allclose(end.numpy(), np.tile(limit, (5, 1)), atol=1e-9)


def test_a_short_bias_gives_the_eigenvector_on_its_own_side():
    F = matrix_with([1.0], 4, bulk=0.3, seed=1).numpy()
    values, vectors = np.linalg.eig(F)
    v = vectors[:, np.argmin(abs(values - 1))].real
    for side in (1, -1):
        x, s = companion.affine_limit(np.eye(4) + F, side * 1e-6 * v)
        np.testing.assert_allclose(x, side * v, atol=1e-5)
        assert s == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize(
    ("A", "c", "says"),
    [
        (np.eye(3), np.zeros(3), "not zero"),
        (np.eye(3), np.full(3, np.nan), "finite"),
        (np.eye(3), np.ones(2), "shape"),
        (np.array([[0.0, -2.0], [2.0, 0.0]]), 0.1 * np.ones(2), "not real and"),
        (np.diag([2.0, 1.0]), np.array([0.0, 0.1]), "no part along"),
    ],
)
def test_a_limit_that_does_not_exist_says_why(A, c, says):
    with pytest.raises(LayerError, match=says):
        companion.affine_limit(A, c)


@given(st.floats(0.05, 0.98), st.integers(2, 300), st.floats(0.5, 0.999))
def test_layers_to_align_is_closed_where_all_other_eigenvalues_are_equal(ratio, d, gamma):
    eigenvalues = [1.0] + [2 * ratio - 1] * (d - 1)
    layers = companion.layers_to_align(eigenvalues, gamma=gamma)
    tangent = math.sqrt(1 - gamma**2) / gamma
    expected = max(0.0, math.log(math.sqrt(d - 1) / tangent) / -math.log(ratio))
    assert layers == pytest.approx(expected, abs=1e-6)


def test_layers_to_align_predicts_the_mean_over_random_starts_of_a_normal_layer():
    d, n, gamma = 16, 12, 0.99
    values = np.r_[1.2, np.linspace(0.3, -0.3, d - 1)]
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    layer = layer_with(torch.tensor(rotation * values @ rotation.T), seed=1)
    x = torch.randn(400, n, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    states = companion.orbit(x, [layer] * 30, "uniform")
    reached = companion.alignment(states, torch.tensor(rotation[:, :1])).mean(-1) > gamma
    layers = reached.int().argmax(0).double()
    assert abs(float(layers.median()) - companion.layers_to_align(values, n, gamma)) < 1.5


def test_layers_to_align_at_the_ends_of_its_range():
    assert companion.layers_to_align([1.0, 1.0]) == math.inf  # a tie
    assert companion.layers_to_align([-1.0, -1.0]) == math.inf  # every token is sent to zero
    assert companion.layers_to_align([0.0, -0.5], n=2) == math.inf  # nothing brings tokens together
    assert companion.layers_to_align([1.0], n=5) == 0.0  # one dimension
    assert companion.layers_to_align([1 + 1j, 1 - 1j]) == 0.0  # the plane is everything
    assert companion.layers_to_align([0.5, -0.5], gamma=0.3) == 0.0  # chance does it
    for wrong in (([], 1, 0.9), ([1.0], 0, 0.9), ([1.0], 1, 1.0), ([np.nan], 1, 0.9)):
        with pytest.raises(LayerError, match="needed are"):
            companion.layers_to_align(*wrong)


@given(seeds, st.floats(0.01, 0.3), st.sampled_from(["full", "causal"]), st.floats(0.1, 5.0))
@settings(max_examples=40, deadline=None)
def test_no_token_turns_further_than_the_bound(seed, size, mask, radius):
    layer = random_layer(d=6, n_heads=2, seed=seed, size=size**0.5, mask=mask)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    before, after = companion.orbit(x, [layer], radius=radius)
    turn = torch.arccos((before * after).sum(-1).clamp(-1, 1))
    assert float(turn.max()) <= companion.tilt_bound(layer) + 1e-7


def test_the_bound_is_reached_by_a_rotation_and_absent_for_large_layers():
    B = 0.4
    turn = math.acos(-B)
    F = B * torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]], dtype=torch.float64)
    layer = layer_with(F)
    before, after = companion.orbit(torch.tensor([[1.0, 0.0]], dtype=torch.float64), [layer])
    assert math.acos(float((before * after).sum())) == pytest.approx(companion.tilt_bound(layer), abs=1e-9)
    assert companion.tilt_bound(layer_with(5 * F)) == math.pi
