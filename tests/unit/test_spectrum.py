"""The leading eigenpairs are the right ones, whole, ordered and reproducible."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import companion
from companion.errors import SpectrumError
from companion.spectrum import random_subspaces, spectrum

ORDERS = ("residual", "modulus", "real")
KEY = {"residual": lambda v: abs(1 + v), "modulus": abs, "real": np.real}


def ginibre(d, seed=0):
    return np.random.default_rng(seed).standard_normal((d, d)) / d**0.5


def with_outliers(d, values, seed=0, bulk=0.5):
    """A Ginibre bulk of radius ``bulk`` whose leading eigenvalues are exactly ``values``.

    Values are real, or complex with positive imaginary part for a conjugate pair.
    """
    blocks = [[[v]] if np.isreal(v) else [[v.real, v.imag], [-v.imag, v.real]] for v in values]
    lead = scipy.linalg.block_diag(*np.real_if_close(blocks) if all(np.isreal(values)) else blocks)
    rest = bulk * ginibre(d - len(lead), seed)
    basis = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((d, d)))[0]
    return basis @ scipy.linalg.block_diag(lead, rest) @ basis.T


@settings(max_examples=60, deadline=None)
@given(d=st.integers(1, 12), k=st.integers(1, 12), order=st.sampled_from(ORDERS), seed=st.integers(0, 10_000))
def test_keys_are_the_largest_of_all_eigenvalues_and_pairs_are_whole(d, k, order, seed):
    k = min(k, d)
    F = ginibre(d, seed)
    found = spectrum(F, k, order)
    every = np.sort(KEY[order](np.linalg.eigvals(F)))[::-1]
    count = len(found.eigenvalues)
    assert count in (k, k + 1)
    np.testing.assert_allclose(KEY[order](found.eigenvalues), every[:count], rtol=0, atol=1e-10)
    conjugates = sorted(found.eigenvalues.conj(), key=lambda v: (v.real, v.imag))
    np.testing.assert_allclose(sorted(found.eigenvalues, key=lambda v: (v.real, v.imag)), conjugates)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("values", [(3.0, 2.4), (1.2 + 2j, 1.9), (2.5, -2.4, 2.2), (-3.0, 2.2)])
def test_the_certified_way_agrees_with_lapack(order, values):
    F = with_outliers(600, values)
    found = spectrum(F, 2, order)
    every = np.linalg.eigvals(F)
    ranked = every[np.argsort(-KEY[order](every), kind="stable")]
    count = len(found.eigenvalues)
    np.testing.assert_allclose(KEY[order](found.eigenvalues), KEY[order](ranked[:count]), rtol=0, atol=1e-12)
    assert found.residuals.max() < 1e-12
    np.testing.assert_allclose(F @ found.vectors, found.vectors * found.eigenvalues, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_outliers_are_certified_and_a_crowded_edge_goes_to_lapack(order):
    assert spectrum(with_outliers(600, (3.0, 2.4)), 2, order).method == "certified"
    assert spectrum(ginibre(600), 2, order).method == "lapack"


def test_the_certificate_refuses_what_arpack_missed(monkeypatch):
    """An iteration that returns true eigenpairs, but not the leading ones, must not get through."""
    F = with_outliers(600, (3.0, 2.9, 2.4, 2.0, 1.9, 1.8, 1.7, 1.6))
    values, vectors = np.linalg.eig(F)
    later = np.argsort(-abs(values))[1:7]  # the first is left out
    monkeypatch.setattr("scipy.sparse.linalg.eigs", lambda *_, **__: (values[later], vectors[:, later]))
    found = spectrum(F, 2, "modulus")
    assert found.method == "lapack"
    np.testing.assert_allclose(found.eigenvalues, [3.0, 2.9], atol=1e-12)


def test_a_double_eigenvalue_is_found_twice():
    found = spectrum(with_outliers(600, (3.0, 3.0, 2.0)), 2, "modulus")
    np.testing.assert_allclose(found.eigenvalues, [3.0, 3.0], atol=1e-10)
    with pytest.raises(SpectrumError, match="not determined"):
        _ = found.basis
    assert found.gap < 1e-10


@pytest.mark.parametrize("d", [40, 600])
def test_repeated_calls_give_the_same_bits(d):
    F = with_outliers(d, (3.0, 1 + 2j))
    first, second = spectrum(F), spectrum(F.copy())
    for name in ("eigenvalues", "vectors", "residuals", "basis"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()


def test_a_complex_pair_spans_a_plane_and_a_real_eigenvalue_a_line():
    pair = spectrum(with_outliers(30, (1 + 3j,)), 1)
    assert (pair.kind, pair.basis.shape, len(pair.eigenvalues)) == ("complex", (30, 2), 2)
    line = spectrum(with_outliers(30, (3.0,)), 1)
    assert (line.kind, line.basis.shape, len(line.eigenvalues)) == ("real", (30, 1), 1)
    for found in (pair, line):
        np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(found.basis.shape[1]), atol=1e-14)


def test_the_principal_eigenspace_is_invariant():
    F = with_outliers(30, (1 + 3j,))
    B = spectrum(F).basis
    np.testing.assert_allclose(F @ B, B @ (B.T @ F @ B), atol=1e-13)


def test_the_gap_is_between_keys_of_eigenvalues_that_are_not_conjugate():
    F = scipy.linalg.block_diag([[0, 2], [-2, 0]], [[1.5]], [[0.2]])
    assert spectrum(F, 1, "modulus").gap == pytest.approx(0.5)
    assert spectrum(F, 1, "residual").gap == pytest.approx(2.5 - 5**0.5)
    assert spectrum(np.array([[2.0]]), 1).gap == np.inf


@pytest.mark.parametrize("shift", [0.0, 1e-18])
def test_a_jordan_block_has_no_principal_line(shift):
    F = np.array([[2.0, 1.0, 0.0], [shift, 2.0, 0.0], [0.0, 0.0, 2.0]])
    with pytest.raises(SpectrumError, match="not determined"):
        _ = spectrum(F).basis


@settings(max_examples=40, deadline=None)
@given(d=st.integers(2, 8), seed=st.integers(0, 10_000), top=st.floats(1.0, 3.0))
def test_a_strictly_dominant_positive_eigenvalue_leads_in_all_three_orders(d, seed, top):
    rest = ginibre(d - 1, seed)
    rest *= 0.8 * top / max(abs(np.linalg.eigvals(rest)).max(), 1e-9)
    F = scipy.linalg.block_diag([[top]], rest)
    assert {spectrum(F, 1, order).eigenvalues[0] for order in ORDERS} == {complex(top)}


def test_the_orders_disagree_where_the_paper_does_not_look():
    F = np.diag([-3.0, 1.5, 1.0])
    assert spectrum(F, 1, "modulus").eigenvalues[0] == -3
    assert spectrum(F, 1, "real").eigenvalues[0] == 1.5
    assert spectrum(F, 1, "residual").eigenvalues[0] == 1.5


def test_published_numbers_of_minilm_and_rxnmapper(minilm, rxnmapper):
    def largest_real(layer):
        values = np.linalg.eigvals(layer.F.numpy())
        return values.real[values.imag == 0].max()

    assert round(largest_real(minilm.layers[0]), 3) == 1.238
    assert round(largest_real(minilm.layers[2]), 3) == 1.655
    F = rxnmapper.layers[0].F
    assert np.round(spectrum(F, order="modulus").eigenvalues[0], 3) == -1.728 + 2.116j
    assert np.round(spectrum(F, order="residual").eigenvalues[0], 3) == -0.133 + 2.169j


def test_random_subspaces_are_orthonormal_and_uniform():
    bases = random_subspaces(20, 2, 400, seed=1)
    np.testing.assert_allclose(bases.transpose(0, 2, 1) @ bases, np.broadcast_to(np.eye(2), (400, 2, 2)), atol=1e-12)
    x = np.zeros(20)
    x[3] = 1
    share = (np.square(bases[:, 3]).sum(1)).mean()
    assert share == pytest.approx(2 / 20, rel=0.15)


@pytest.mark.parametrize(("d", "r"), [(384, 1), (384, 2), (5, 3), (4, 4)])
def test_chance_alignment_is_the_mean_over_random_subspaces(d, r):
    x = np.ones(d) / d**0.5
    drawn = np.linalg.norm(x @ random_subspaces(d, r, 4000, seed=2), axis=1).mean()
    assert companion.chance_alignment(d, r) == pytest.approx(drawn, rel=0.03)
    with pytest.raises(SpectrumError):
        companion.chance_alignment(3, 4)


@pytest.mark.parametrize(
    ("F", "options", "says"),
    [
        (np.ones((3, 4)), {}, "(3, 4)"),
        (np.ones(3), {}, "square"),
        (np.array([[1.0, np.nan], [0, 1]]), {}, "NaN"),
        (np.array([[1.0, np.inf], [0, 1]]), {}, "infinity"),
        (np.eye(3), {"order": "size"}, "order='size'"),
        (np.eye(3), {"k": 0}, "k=0"),
        (np.eye(3), {"k": 4}, "k=4"),
        (np.eye(3) * 1j, {}, "complex"),
    ],
)
def test_a_matrix_without_a_spectrum_is_refused(F, options, says):
    with pytest.raises(companion.CompanionError) as error:
        companion.spectrum(F, **options)
    assert says in str(error.value)


def test_tensors_of_any_dtype_are_computed_with_in_float64():
    F = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).half()
    np.testing.assert_array_equal(spectrum(F).eigenvalues, spectrum(F.double().numpy()).eigenvalues)
