"""Pictures are the same for the same table, say in words what they show, and refuse what they cannot draw."""

import io
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

import companion
from companion import figures

LINES = pd.DataFrame(
    {"step": [0, 1, 2] * 2, "value": [0.1, 0.5, 0.9, 0.2, 0.2, 0.3], "name": ["own"] * 3 + ["null"] * 3}
)
LINES = LINES.assign(low=LINES["value"] - 0.05, high=LINES["value"] + 0.05)
TILT = pd.DataFrame(
    {"layer": [0, 1]}
    | {f"{q}{e}": [0.4, 0.6] for q in ("gamma", "rho") for e in ("", "_low", "_high", "_null", "_other")}
)
EIGEN = pd.DataFrame({"real": [1.0, -0.5, 0.1], "imag": [0.0, 0.5, 0.2], "leads": ["residual", "", "modulus"]})
PATHS = pd.DataFrame({"x": np.cos(range(6)), "y": np.sin(range(6)), "step": [0, 1, 2] * 2, "path": [0] * 3 + [1] * 3})
MATRIX = pd.DataFrame({"layer": [0, 0, 1, 1], "eigenspace": [0, 1, 0, 1], "value": [0.3, 0.1, 0.2, 0.5]})
INTERVALS = pd.DataFrame(
    {"model": ["a", "a", "b"], "order": ["x", "y", "x"], "mean": [0.1, 0.2, 0.3], "low": 0.05, "high": 0.4}
)
_ANGLES = np.linspace(0, 1, 12).reshape(2, 2, 3)  # state, token, layer
SPHERES = pd.DataFrame(
    [
        {"state": f"state {s}", "token": t, "layer": m, "x": np.cos(a), "y": np.sin(a), "z": 0.0}
        for (s, t, m), a in np.ndenumerate(_ANGLES)
    ]
)

DRAW = {
    "lines": lambda: figures.lines(
        LINES, "step", "value", "name", ("layer", "γ"), band=("low", "high"), level=(0.5, "half")
    ),
    "log": lambda: figures.lines(LINES, "step", "value", "name", ("α", "γ"), log_x=True, log_y=True, ylim=(0.01, 1)),
    "gamma": lambda: figures.tilts(TILT, "gamma"),
    "rho": lambda: figures.tilts(TILT, "rho"),
    "eigenvalues": lambda: figures.eigenvalues(EIGEN, "title"),
    "paths": lambda: figures.paths(PATHS, ("a", "b")),
    "spheres": lambda: figures.spheres(SPHERES),
    "intervals": lambda: figures.intervals(INTERVALS, "model", "order", "lead", level=(0.0, "none")),
    "points": lambda: figures.points(LINES, "step", "value", "name", ("gap", "γ"), level=(0.5, "half")),
    "matrix": lambda: figures.layers_against_layers(MATRIX, "γ"),
}


@pytest.mark.parametrize("name", DRAW)
def test_a_picture_is_valid_svg_with_alt_text_and_the_same_twice(name):
    picture, again = DRAW[name](), DRAW[name]()
    data, metadata = picture._repr_mimebundle_()
    assert ET.fromstring(data["image/svg+xml"]).tag.endswith("svg")
    assert metadata["image/svg+xml"]["alt"] == picture.alt == data["text/plain"]
    assert len(picture.alt) > 40
    read = pd.read_csv(io.StringIO(data["text/csv"]))
    assert list(read.columns) == list(map(str, picture.data.columns)) and len(read) == len(picture.data)
    assert picture.svg() == again.svg()


def test_the_alt_text_holds_the_numbers_that_are_drawn():
    assert "own: from 0.1 at 0 to 0.9 at 2" in DRAW["lines"]().alt
    assert "0.40, 0.60" in DRAW["rho"]().alt
    first, second = (np.cos(angles[1, 2] - angles[0, 2]) for angles in _ANGLES)
    assert f"state 0: cosines between tokens from {first:.2f} to {first:.2f} at the end" in DRAW["spheres"]().alt
    assert f"state 1: cosines between tokens from {second:.2f}" in DRAW["spheres"]().alt
    assert "b, x: 0.300 (0.050 to 0.400)" in DRAW["intervals"]().alt
    assert "own: 3 points, step from 0 to 2, value from 0.1 to 0.9" in DRAW["points"]().alt
    assert "0.400 on the diagonal on average, 0.150 elsewhere" in DRAW["matrix"]().alt


def test_series_differ_by_more_than_colour():
    axes = DRAW["lines"]().figure.axes[0]
    own, null = axes.get_lines()[:2]
    assert own.get_linestyle() != null.get_linestyle()
    assert own.get_marker() != null.get_marker()


def test_axes_are_labelled():
    for name, draw in DRAW.items():
        axes = draw().figure.axes[0]
        if name == "spheres":  # a globe has no axes; each has a title instead
            assert axes.get_title()
            continue
        assert axes.get_xlabel() and axes.get_ylabel()


def test_a_picture_is_written_in_the_format_of_its_name(tmp_path):
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        DRAW["lines"]().save(tmp_path / f"figure{ending}")
        assert (tmp_path / f"figure{ending}").read_bytes().startswith(start)


def test_a_table_without_its_columns_is_refused():
    with pytest.raises(companion.CompanionError, match="lacks the columns layer"):
        figures.layers_against_layers(MATRIX.drop(columns="layer"), "γ")
    with pytest.raises(companion.CompanionError, match="is empty"):
        figures.paths(PATHS.iloc[:0], ("a", "b"))


def test_samples_are_a_table_of_texts_by_strength_and_nothing_in_them_is_markup():
    samples = companion.Samples(["The <b>"], {0.0: [" sea", "more"], 8.0: [" & ship"]})
    found = samples._repr_mimebundle_()
    assert "The &lt;b&gt;</strong> sea" in found["text/html"] and "&amp; ship" in found["text/html"]
    assert found["text/plain"] == "0: The <b> sea\n8: The <b> & ship"
    with pytest.raises(companion.CompanionError, match=r"strength 1.0 has 0 texts for 1 beginnings"):
        companion.Samples(["a"], {1.0: []})
