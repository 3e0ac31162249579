"""The closed forms are the spectral radius of the Jacobian that autograd finds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import companion
from companion import orbit, power_step
from companion.errors import LayerError
from companion.examples import layer_with, matrix_with
from companion.stability import bipartite_radius, head_affinity, jacobian_radius, rotation_angle, stability_radius

LEADING = (1.4, 0.7, -0.6, 0.25)


def symmetric_layer(values, seed, n_heads=1, **options):
    """A layer with orthogonal eigenvectors, so that eigenvalues of the Jacobian are well conditioned."""
    F = matrix_with(values, len(values), seed=seed)
    return layer_with(F, n_heads=n_heads, seed=seed, **options)


def eigenvector(layer, value):
    values, vectors = torch.linalg.eig(layer.F)
    return vectors[:, (values - value).abs().argmin()].real


@settings(max_examples=60, deadline=None)
@given(
    k=st.integers(0, 3),
    n=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4]),
    options=st.sampled_from([{"mask": "full"}, {"mask": "causal"}, {"mask": "local", "window": 2}]),
    radius=st.sampled_from([0.5, 1.0, 4.0]),
    seed=st.integers(0, 500),
)
def test_stability_of_consensus_is_the_jacobians_spectral_radius(k, n, heads, options, radius, seed):
    layer = symmetric_layer(LEADING, seed, heads, **options)
    x = eigenvector(layer, LEADING[k]).expand(n, 4)
    expected = stability_radius(LEADING, k, n, **options)
    assert jacobian_radius(x, layer, radius=radius) == pytest.approx(expected, abs=1e-10)


def test_stability_holds_for_complex_others_and_many_heads():
    F = matrix_with([0.9, 0.1 + 0.8j], 4, bulk=0.3, seed=3)
    layer = layer_with(F, n_heads=2, seed=3)
    values = np.linalg.eigvals(F.numpy())
    k = int(abs(values - 0.9).argmin())
    values[k] = values[k].real
    x = eigenvector(layer, 0.9).expand(5, 4)
    assert jacobian_radius(x, layer, radius=2.0) == pytest.approx(stability_radius(values, k, 5), abs=1e-8)


def test_a_causal_mask_of_few_tokens_can_make_a_weak_direction_stable():
    values = (-0.05, -0.5, -0.5, -0.4)
    assert stability_radius(values, 0, 4, mask="causal") == pytest.approx(0.947, abs=5e-4)
    assert stability_radius(values, 0, 4) > 1


def test_a_repelling_state_repels_and_an_attracting_one_attracts():
    layer = symmetric_layer(LEADING, 0)
    for value, stable in ((1.4, True), (0.7, False)):
        v = eigenvector(layer, value)
        start = v + 1e-3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        end = orbit(start, [layer] * 60, "uniform")[-1]
        assert bool((companion.alignment(end, v[:, None]) > 1 - 1e-6).all()) is stable
        exact = orbit(v.expand(6, 4), [layer] * 5, "uniform")[-1]  # a start at exactly the state stays there
        torch.testing.assert_close(exact, v.expand(6, 4), atol=1e-9, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    k=st.integers(0, 3),
    sides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    affinity=st.floats(-0.4, 2.5),
    seed=st.integers(0, 500),
)
def test_stability_of_a_bipartite_state_is_the_jacobians_spectral_radius(k, sides, affinity, seed):
    F = matrix_with(LEADING, 4, seed=seed)
    eye = torch.eye(4, dtype=torch.float64)
    layer = companion.AttentionLayer(affinity * eye, eye, eye, F, n_heads=1, scale=1.0)
    v = eigenvector(layer, LEADING[k])
    x = torch.stack([v] * sides[0] + [-v] * sides[1])
    after, b = power_step(x, layer), float(head_affinity(layer, v)[0])
    if bool(((after * x).sum(-1) < 0).any()):  # a side is sent to the other: no fixed point, and that is said
        with pytest.raises(LayerError, match="change sides"):
            bipartite_radius(LEADING, k, b, *sides)
        return
    expected = bipartite_radius(LEADING, k, b, *sides)
    torch.testing.assert_close(after, x, atol=1e-9, rtol=0)
    assert jacobian_radius(x, layer) == pytest.approx(expected, abs=1e-8)


def test_published_bipartite_radii():
    values = (1, 0.6, 0.3, -0.2, -0.4)
    found = [bipartite_radius(values, 0, b, 4, 3) for b in (0.0, 0.42, 1.67)]
    np.testing.assert_allclose(found, [1.65, 1.17, 0.83], atol=0.006)


@settings(max_examples=40, deadline=None)
@given(top=st.floats(0.1, 2), p=st.integers(1, 9), q=st.integers(1, 9))
def test_under_uniform_attention_only_an_even_split_is_not_unstable(top, p, q):
    assume(top * abs(p - q) < 0.95 * (p + q))  # else the state is not fixed
    radius = bipartite_radius((top, 0.0), 0, 0.0, p, q)
    if p == q:
        assert radius == pytest.approx(1.0)
    elif min(p, q) > 1:  # the minority's perturbation grows by 1 / (1 - lambda |p - q|), p and q as shares
        assert radius >= 1 / (1 - top * abs(p - q) / (p + q)) - 1e-9
        assert radius > 1


def test_affinity_is_the_logit_of_a_direction_with_itself():
    layer = layer_with(matrix_with(LEADING, 4, seed=1), n_heads=2, seed=1)
    v = eigenvector(layer, 1.4)
    x = 3.0 * torch.stack([v, -v])
    weights = layer.weights(x, bias=False)
    logits = torch.log(weights[:, 0, 0] / weights[:, 0, 1])  # b - (-b)
    torch.testing.assert_close(head_affinity(layer, 5 * v, radius=3.0), logits / 2)


def test_affinity_of_trained_layers_has_one_value_a_head(minilm):
    layer = minilm.layers[0]
    v = torch.tensor(companion.spectrum(layer.F).basis[:, 0])
    assert head_affinity(layer, v, radius=384**0.5).shape == (12,)


def test_rotation_is_the_argument_of_one_plus_lambda():
    assert rotation_angle(1j) == pytest.approx(np.pi / 4)
    assert rotation_angle(-3.0) == pytest.approx(np.pi)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: stability_radius((-1.0, 0.5), 0, 3), "1 + lambda_k = 0"),
        (lambda: stability_radius((1j, -1j), 0, 3), "limit cycle"),
        (lambda: stability_radius((1.0, 0.5), 2, 3), "k=2"),
        (lambda: stability_radius((1.0, 0.5), 0, 0), "n=0"),
        (lambda: stability_radius((1.0, 0.5), 0, 3, mask="local"), "window=None"),
        (lambda: bipartite_radius((1.0, 0.5), 0, 1.0, 3, 0), "3 and 0"),
        (lambda: bipartite_radius((4.0, 0.5), 0, 0.0, 1, 5), "change sides"),
        (lambda: rotation_angle(-1), "1 + lambda = 0"),
        (lambda: head_affinity(layer_with(matrix_with(LEADING, 4)), torch.zeros(4)), "not all zero"),
    ],
)
def test_where_there_is_no_such_state_the_error_says_why(call, says):
    with pytest.raises(companion.CompanionError) as error:
        call()
    assert says in str(error.value)


def test_one_token_and_one_dimension_are_defined():
    assert bipartite_radius((-1.0, 0.5), 0, 0.0, 2, 2) == pytest.approx(1.5)
    assert np.isfinite(bipartite_radius((0.5, 0.2), 0, -1e6, 2, 3)) and np.isfinite(
        bipartite_radius((0.5, 0.2), 0, 1e6, 2, 3)
    )
    assert stability_radius((1.0, 0.5), 0, 1) == pytest.approx(0.75)
    assert stability_radius((1.0,), 0, 3) == 0.0
    assert bipartite_radius((1.0,), 0, 1.0, 2, 1) == 0.0


def shared_eigenvector_layer(seed, d=4, heads=2, size=1.0):
    """Heads that do not commute but share the eigenvector v, each with an eigenvalue of its own."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(d)
    v /= np.linalg.norm(v)
    rest = np.eye(d) - np.outer(v, v)
    values = rng.uniform(-0.1, 0.8, heads)
    matrices = [value * np.outer(v, v) + rng.standard_normal((d, d)) @ rest * size / d for value in values]
    W_V = np.concatenate([np.eye(d)] * heads)
    W_Q, W_K = (rng.standard_normal((heads * d, d)) for _ in range(2))
    tensors = [torch.tensor(W) for W in (W_Q, W_K, W_V, np.concatenate(matrices, axis=1))]
    return companion.AttentionLayer(*tensors, n_heads=heads), torch.tensor(v), values


@given(st.integers(0, 10**6), st.sampled_from([(1, 1), (3, 1), (2, 3)]), st.integers(1, 3), st.floats(0.3, 2.0))
@settings(max_examples=40, deadline=None)
def test_two_sides_under_several_heads_match_autograd(seed, sides, heads, radius):
    layer, v, _ = shared_eigenvector_layer(seed, heads=heads)
    state = torch.stack([v] * sides[0] + [-v] * sides[1])
    try:
        closed = companion.heads_bipartite_radius(layer, 3 * v, *sides, radius=radius)
    except LayerError:
        assume(False)  # an entry of D is not positive: the state is not fixed
    torch.testing.assert_close(companion.power_step(state, layer, radius=radius), state)
    assert companion.jacobian_radius(state, layer, radius=radius) == pytest.approx(closed, abs=1e-7)


def test_with_one_head_it_is_the_formula_by_eigenvalues():
    F = matrix_with([1.0, 0.6, 0.3, -0.2], 4, seed=5)
    eye = torch.eye(4, dtype=torch.float64)
    values, vectors = torch.linalg.eig(F)
    v = vectors[:, (values - 1).abs().argmin()].real
    for b in (0.0, 0.5, 2.0):
        layer = companion.AttentionLayer(b * eye, eye, eye, F, n_heads=1, scale=1.0)
        expected = companion.bipartite_radius([1.0, 0.6, 0.3, -0.2], 0, b, 4, 3)
        assert companion.heads_bipartite_radius(layer, v, 4, 3) == pytest.approx(expected, abs=1e-9)


def test_a_direction_that_some_head_turns_is_no_state_of_two_sides():
    layer, v, _ = shared_eigenvector_layer(0)
    with pytest.raises(LayerError, match="no eigenvector of head 0"):
        companion.heads_bipartite_radius(layer, torch.ones(4, dtype=torch.float64), 2, 2)
    with pytest.raises(LayerError, match="at least one on either side"):
        companion.heads_bipartite_radius(layer, v, 2, 0)
    with pytest.raises(LayerError, match="full attention"):
        companion.heads_bipartite_radius(replace(layer, mask="causal"), v, 2, 2)
    weak = companion.AttentionLayer(
        torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), 3 * torch.ones(1, 1), n_heads=1
    )
    with pytest.raises(LayerError, match="change sides"):
        companion.heads_bipartite_radius(weak, torch.ones(1), 3, 1)


@given(
    n=st.integers(3, 6),
    eigenvalue=st.floats(-0.9, 1.5),
    b=st.floats(-2.0, 4.0),
    others=st.lists(st.floats(-0.9, 1.0), max_size=2),
)
@settings(max_examples=40, deadline=None)
def test_the_jacobian_at_a_regular_polygon_has_the_spectrum_of_the_theorem(n, eigenvalue, b, others):
    d = 2 + len(others)
    F = torch.diag(torch.tensor([eigenvalue, eigenvalue, *others], dtype=torch.float64))
    eye = torch.eye(d, dtype=torch.float64)
    layer = companion.AttentionLayer(b * eye, eye, eye, F, n_heads=1, scale=1.0)
    angle = 2 * torch.pi * torch.arange(n, dtype=torch.float64) / n
    state = torch.zeros(n, d, dtype=torch.float64)
    state[:, 0], state[:, 1] = angle.cos(), angle.sin()
    try:
        closed = companion.polygon_radius(eigenvalue, n, b, others)
    except LayerError:
        assume(False)
    torch.testing.assert_close(power_step(state, layer), state)
    jacobian = torch.autograd.functional.jacobian(lambda y: power_step(y, layer), state).reshape(n * d, n * d)
    # Take the turn of the whole polygon, which is neutral, out of the spectrum.
    turn = torch.zeros_like(state)
    turn[:, 0], turn[:, 1] = -angle.sin(), angle.cos()
    turn = turn.flatten() / n**0.5
    torch.testing.assert_close(jacobian @ turn, turn, atol=1e-9, rtol=0)
    rest = torch.eye(n * d, dtype=torch.float64) - torch.outer(turn, turn)
    found = torch.linalg.eigvals(rest @ jacobian @ rest).abs().max()
    assert float(found) == pytest.approx(closed, abs=1e-7)


def test_three_tokens_that_repel_each_other_are_stable_as_a_triangle_and_attracting_ones_are_not():
    assert companion.polygon_radius(-0.5, 3, 1.0) < 1 < companion.polygon_radius(0.5, 3, 1.0)
    with pytest.raises(LayerError, match="n >= 3"):
        companion.polygon_radius(-0.5, 2, 1.0)
    with pytest.raises(LayerError, match="change places"):
        companion.polygon_radius(-2.0, 3, 4.0)
