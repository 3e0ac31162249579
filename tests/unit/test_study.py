"""A study holds what its parts say, is computed once, travels whole, and does not stop for one bad model."""

import importlib
import json

import numpy as np
import pandas as pd
import pytest
import torch
from networks import random_model
from test_models import folder  # noqa: F401
from test_tracing import TEXTS

import companion
from companion import Study, data, study
from companion.errors import StudyError

module = importlib.import_module("companion.study")  # the package has a function of that name
TABLES = {"layers", "orders", "matrix", "turns", "ways", "cosine", "heads", "fates", "shuffled"}


@pytest.fixture(scope="module")
def models(folder):  # noqa: F811
    tokenizer = companion.load(str(folder)).tokenizer
    return {name: random_model(name, tokenizer=tokenizer) for name in ("bert", "gpt2", "albert", "llama")}


@pytest.fixture(scope="module")
def tables(models):
    return {name: study(model, TEXTS) for name, model in models.items()}


@pytest.mark.parametrize("name", ["bert", "gpt2", "albert", "llama"])
def test_every_table_covers_every_layer(models, tables, name):
    found, count = tables[name], len(models[name].layers)
    assert set(found) == TABLES
    orders = 4 if name in ("gpt2", "llama") else 3
    assert len(found["layers"]) == count * orders
    assert len(found["orders"]) == orders
    for table in ("turns", "ways", "shuffled", "heads"):
        assert sorted(found[table]["layer"].unique()) == list(range(count))
    assert len(found["cosine"]) == count + 1
    assert len(found["matrix"]) == (count if name == "albert" else count**2)


def test_numbers_are_those_of_the_functions_behind_them(models, tables):
    model, found = models["bert"], tables["bert"]
    kept = companion.trace(model, TEXTS, order="modulus")
    rows = found["layers"].query("order == 'modulus'").reset_index(drop=True)
    expected = companion.tilt(kept)
    for column in ("gamma", "rho", "rho_low", "rho_other", "gamma_null"):
        np.testing.assert_allclose(rows[column], expected[column])
    np.testing.assert_allclose(rows["lead"], companion.excess(kept, over="other")["rho"])
    assert rows["gap"].tolist() == pytest.approx([companion.spectrum(x.F, order="modulus").gap for x in model.layers])
    network = found["ways"].query("way == 'network'")["rho"]
    np.testing.assert_allclose(network, found["layers"].query("order == 'residual'")["rho"])


def test_the_lead_of_an_order_is_the_mean_over_texts_and_layers(models, tables):
    kept = companion.trace(models["bert"], TEXTS, order="real")
    after = kept[kept["stage"] == "attention"].astype({"target": str})
    after["share"] = after["risen"] / after["n"]
    own = after[after["target"] == "own"]["share"].mean()
    other = after[after["target"].str.startswith("layer-")]["share"].mean()
    row = tables["bert"]["orders"].set_index("order").loc["real"]
    assert row["mean"] == pytest.approx(own - other)
    assert row["low"] <= row["mean"] <= row["high"]


def test_layers_that_share_weights_have_no_lead_over_others(tables):
    assert "lead" not in tables["albert"]["layers"]
    assert tables["albert"]["orders"]["mean"].isna().all()


def test_the_way_of_the_map_is_the_papers_map(models, tables):
    """Follow one text by hand."""
    model = models["gpt2"]
    x = companion.hooks.states(model.network.base_model, model.sites[:1], model.ids(TEXTS[1]), "in")[0].double()
    y = companion.power_step(x / x.norm(dim=-1, keepdim=True), model.layers[0], radius=24**0.5)[0]
    gamma = companion.alignment(y, companion.spectrum(model.layers[0].F).basis)
    one = module._map_trace(model, TEXTS[1:2]).query("layer == 0 and stage == 'attention'").iloc[0]
    assert one["gamma"] == pytest.approx(float(gamma.sum()))
    assert one["n"] == len(gamma)


class TestStudies:
    @pytest.fixture
    def few(self, folder, monkeypatch):  # noqa: F811
        monkeypatch.setattr(data, "texts", lambda _: TEXTS)
        return {str(folder): "letters"}

    def test_the_second_time_it_is_read(self, few, tmp_path, monkeypatch):
        (first,) = companion.studies(few, tmp_path)
        monkeypatch.setattr(module, "load", None)
        (second,) = companion.studies(few, tmp_path)
        assert second.provenance == first.provenance
        assert {"source", "sha256"} <= set(first.provenance["model"])
        for key, table in first.tables.items():
            pd.testing.assert_frame_equal(second.tables[key], table, check_dtype=False, check_exact=False, rtol=1e-9)

    def test_a_model_that_fails_leaves_its_reason_and_is_tried_again(self, few, tmp_path):
        names = {"no-such-model": "letters", **few}
        failed, done = companion.studies(names, tmp_path)
        assert "unknown model 'no-such-model'" in failed.failure
        assert failed.tables == {}
        assert done.failure == ""
        assert [path.name.split("-")[0] for path in tmp_path.glob("no-such*.json")] == []

    def test_running_out_of_memory_is_a_reason_too(self, few, tmp_path, monkeypatch):
        def full(*_, **__):
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(module, "load", full)
        assert "out of memory" in companion.studies(few, tmp_path)[0].failure

    def test_another_seed_is_another_study(self, few, tmp_path):
        companion.studies(few, tmp_path)
        companion.studies(few, tmp_path, seed=1)
        assert len(list(tmp_path.glob("*.json"))) == 2


class TestFile:
    def test_a_study_comes_back_as_it_was(self, tables, tmp_path):
        kept = Study("zoo/bert", tables["bert"], {"seed": 0})
        kept.save(tmp_path / "bert.json")
        back = Study.read(tmp_path / "bert.json")
        assert (back.name, back.provenance, back.failure) == ("zoo/bert", {"seed": 0}, "")
        for key, table in tables["bert"].items():
            pd.testing.assert_frame_equal(back.tables[key], table, check_dtype=False, check_exact=False, rtol=1e-9)

    @pytest.mark.parametrize("content", ["", "{}", "[1]", json.dumps({"name": "x", "tables": {"a": {"b": 1}}})])
    def test_what_is_no_study_is_refused(self, tmp_path, content):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(StudyError, match="is no study"):
            Study.read(tmp_path / "x.json")


class TestFates:
    def test_signs_and_sizes_are_those_of_the_components(self, models):
        model = models["gpt2"]
        table = companion.fates(model, TEXTS[:2]).set_index(["layer", "text"])
        for (layer, text), row in table.iterrows():
            v = torch.tensor(companion.spectrum(model.layers[layer].F, order="modulus").vectors[:, 0].real)
            c, d = (model.states(TEXTS[text], stage)[layer].double() @ v for stage in ("in", "attention"))
            assert row["overshot"] == pytest.approx(float((c * d <= 0).double().mean()))
            assert row["grown"] == pytest.approx(float(((c * d > 0) & (d.abs() > c.abs())).double().mean()))
            assert row[["grown", "shrunk", "overshot"]].sum() == pytest.approx(1)
            assert row["n"] == len(c)
