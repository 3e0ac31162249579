"""The explorer carries every eigenvalue, and a table for those who have no scripts."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import companion


def tables(names=("a", "b"), count=2, d=5, seed=0):
    rng = np.random.default_rng(seed)
    spectra, layers = [], []
    for name in names:
        for layer in range(count):
            values = np.linalg.eigvals(rng.standard_normal((d, d)))
            spectra += [{"model": name, "layer": layer, "real": v.real, "imag": v.imag} for v in values]
            first = values[abs(1 + values).argmax()]
            numbers = dict.fromkeys(("gap", "gamma", "gamma_low", "gamma_high", "chance", "rho"), 0.25)
            row = {"model": name, "layer": layer, "real": first.real, "imag": first.imag, **numbers}
            layers.append(row | {"growth": abs(1 + first)})
    return pd.DataFrame(spectra), pd.DataFrame(layers)


def read(shown):
    (content,) = re.findall(r'<script type="application/json">(.*?)</script>', shown["text/html"], re.DOTALL)
    return json.loads(content)


@given(seed=st.integers(0, 10**6), d=st.integers(1, 9))
def test_every_eigenvalue_travels_once_with_conjugates_left_to_the_page(seed, d):
    spectra, layers = tables(d=d, seed=seed)
    for model in read(companion.Explorer(spectra, layers)._repr_mimebundle_()):
        for layer in model["layers"]:
            upper = np.array(layer["all"]).reshape(-1, 2) @ [1, 1j]
            found = np.sort_complex(np.r_[upper, upper[upper.imag > 0].conj()])
            own = spectra[(spectra["model"] == model["name"]) & (spectra["layer"] == layer["layer"])]
            expected = own[["real", "imag"]].to_numpy() @ [1, 1j]
            # An imaginary part that rounds to zero loses its twin: it is a point on the axis to the eye.
            if (abs(expected.imag[expected.imag != 0]) > 1e-3).all():
                np.testing.assert_allclose(found, np.sort_complex(expected.round(3)), atol=2e-3)


def test_without_scripts_there_is_a_row_for_each_layer():
    shown = companion.Explorer(*tables())._repr_mimebundle_()
    assert shown["text/html"].count("<tr>") == 1 + 4


def test_a_name_cannot_end_the_script():
    shown = companion.Explorer(*tables(names=("</script><b>",)))._repr_mimebundle_()
    assert shown["text/html"].count("</script>") == 1
    assert read(shown)[0]["name"] == "</script><b>"


def test_tables_of_different_layers_are_refused():
    spectra, layers = tables()
    with pytest.raises(companion.CompanionError, match=r"only one of them has \[\('b', 1\)\]"):
        companion.Explorer(spectra, layers.iloc[:-1])
    with pytest.raises(companion.CompanionError, match="layers lacks the columns rho"):
        companion.Explorer(spectra, layers.drop(columns="rho"))


def test_small_panels_name_the_eigenvalue_that_leads_each_layer():
    spectra, layers = tables(names=("a",))
    picture = companion.figures.spectra(spectra)
    assert [axes.get_title(loc="left") for axes in picture.figure.axes][:2] == ["layer 0", "layer 1"]
    for row in layers.itertuples():
        assert f"layer {row.layer}: {row.real:.2f}" in picture.alt
