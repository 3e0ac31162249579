"""A reading that all tokens read as positive exists exactly where the origin is outside their convex hull."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from networks import random_model
from scipy.optimize import linprog

import companion
from companion import reading, steered
from companion.errors import SteeringError
from companion.readings import head_outputs, widest

TEXTS = ["Call me Ishmael.", "It was the whale, and the sea went on."]


def separable(rows):
    """Independently: a linear program looks for p with rows @ p >= 1."""
    n, m = rows.shape
    return linprog(np.zeros(m), A_ub=-rows, b_ub=-np.ones(n), bounds=(None, None)).status == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), m=st.integers(2, 6), lean=st.floats(0, 2))
def test_the_widest_reading_exists_where_a_linear_program_finds_one_and_no_other_vector_is_wider(seed, n, m, lean):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, m)) + lean * np.eye(m)[0]
    p = widest(rows)
    assert (p is not None) == separable(rows)
    if p is None:
        return
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    smallest = (unit @ p).min()
    others = p + 0.05 * rng.standard_normal((200, m))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    assert np.linalg.norm(p) == pytest.approx(1)
    assert (others @ unit.T).min(1).max() <= smallest + 1e-9


def test_tokens_all_around_have_no_reading_and_the_error_says_so(monkeypatch):
    around = torch.tensor([[1.0, 0], [-0.5, 0.9], [-0.5, -0.9]], dtype=torch.float64)
    assert widest(around.numpy()) is None
    monkeypatch.setattr("companion.readings.head_outputs", lambda *_: around)
    with pytest.raises(SteeringError, match=r"no reading that is positive for all 3 tokens: the origin lies"):
        reading(random_model("bert"), TEXTS, kind="widest")


def test_a_reading_of_mean_head_outputs_sends_every_token_to_plus_d(minilm):
    d = torch.randn(384, generator=torch.Generator().manual_seed(0))
    p = reading(minilm, TEXTS)
    with steered(minilm, d, 1e6, reading=p):
        x = minilm.states("A quite different sentence about tea.", "attention")[-1]
    assert ((x @ d) / x.norm(dim=1) / d.norm()).min() > 0.999


@pytest.mark.parametrize("kind", ["mean", "widest"])
def test_the_average_token_reads_one(minilm, kind):
    p = reading(minilm, TEXTS, layer=2, kind=kind)
    z = torch.cat([minilm.states(text, "heads")[2] for text in TEXTS]).double()
    torch.testing.assert_close(head_outputs(minilm, TEXTS, 2), z)
    assert float((z @ p).mean()) == pytest.approx(1.0)


def test_where_the_mean_misses_tokens_the_widest_reading_has_them_all_and_the_direction_too():
    model = companion.load("zoo/gpt2")
    texts = companion.data.texts("english")[::8]
    z = head_outputs(model, texts, -1)
    assert float((z @ reading(model, texts)).min()) < 0
    d = torch.randn(128, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = reading(model, texts, kind="widest", direction=d)
    assert float((z @ p).min()) > 0
    assert float(p @ model.layers[-1].W_V.double() @ d) > 0


def test_a_reading_needs_texts_and_a_known_kind(minilm):
    with pytest.raises(companion.CompanionError, match="empty"):
        reading(minilm, [])
    with pytest.raises(companion.CompanionError, match="single string, 'whale'"):
        reading(minilm, "whale")
    with pytest.raises(SteeringError, match="kind='best' is unknown"):
        reading(minilm, TEXTS, kind="best")
