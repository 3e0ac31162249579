"""Spectra are the same whether the network is loaded or only its tensors are read."""

import json
import multiprocessing

import numpy as np
import pytest
import torch
from networks import CONFIGS, random_network

import companion
from companion import checkpoints
from companion.errors import UnsupportedModelError, WeightsError


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.mark.parametrize("name", CONFIGS)
def test_spectra_are_those_of_the_loaded_layers(name, tmp_path, cache):
    random_network(CONFIGS[name]).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    table = companion.spectra(str(tmp_path), cache).set_index(["layer", "order"])
    layers = companion.load(str(tmp_path)).layers
    assert table.index.unique("layer").tolist() == list(range(len(layers)))
    for (index, order), row in table.iterrows():
        found = companion.spectrum(layers[index].F, order=order)
        assert (row["kind"], row["d"]) == (found.kind, layers[index].d_model)
        assert row["gap"] == pytest.approx(found.gap, abs=1e-10)
        value = complex(found.eigenvalues[0])
        np.testing.assert_allclose([row["real"], abs(row["imag"])], [value.real, abs(value.imag)], atol=1e-10)
        assert row["growth"] == pytest.approx(abs(1 + value))


@pytest.mark.parametrize("name", ["minilm", "rxnmapper", "zoo/gpt2"])
def test_checkpoints_that_ship_are_read_as_well(name, cache):
    table = companion.spectra(name, cache)
    layers = companion.load(name).layers
    assert table["layer"].nunique() == len(layers)
    row = table[(table["layer"] == len(layers) - 1) & (table["order"] == "residual")].iloc[0]
    assert row["gap"] == pytest.approx(companion.spectrum(layers[-1].F).gap, abs=1e-9)


def test_half_precision_gives_the_float64_spectrum_of_the_stored_values(tmp_path, cache):
    network = random_network(CONFIGS["llama"]).half()
    network.save_pretrained(tmp_path)
    stored = network.base_model.layers[0].self_attn
    values = stored.v_proj.weight.detach().double().unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    expected = np.linalg.eigvals((stored.o_proj.weight.detach().double() @ values).numpy())
    row = companion.spectra(str(tmp_path), cache).query("layer == 0 and order == 'residual'").iloc[0]
    assert row["growth"] == pytest.approx(np.abs(1 + expected).max(), abs=1e-10)


def test_only_one_layer_is_in_memory(tmp_path):
    random_network(CONFIGS["gpt2"]).save_pretrained(tmp_path)
    checkpoint = checkpoints.find(str(tmp_path))
    config = checkpoints.read_config(checkpoint)
    for layer in checkpoints.layers_of(checkpoint, config):
        assert layer.W_O.device.type == "cpu"
        kept = layer
    assert torch.isfinite(kept.W_O).all()  # what was yielded stays usable


class TestCache:
    def test_the_second_time_nothing_is_computed(self, tmp_path, cache, monkeypatch):
        random_network(CONFIGS["bert"]).save_pretrained(tmp_path)
        first = companion.spectra(str(tmp_path), cache)
        monkeypatch.setattr(checkpoints, "spectrum", None)
        assert companion.spectra(str(tmp_path), cache).equals(first)

    def test_one_changed_number_is_another_entry(self, tmp_path, cache):
        network = random_network(CONFIGS["bert"])
        network.save_pretrained(tmp_path)
        first = companion.spectra(str(tmp_path), cache)
        with torch.no_grad():
            network.base_model.encoder.layer[1].attention.output.dense.weight[0, 0] += 1
        network.save_pretrained(tmp_path)
        second = companion.spectra(str(tmp_path), cache)
        changed = (first["real"] != second["real"]).groupby(first["layer"]).any()
        assert changed.tolist() == [False, True, False]

    def test_a_damaged_entry_is_made_again(self, tmp_path, cache):
        random_network(CONFIGS["bert"]).save_pretrained(tmp_path)
        first = companion.spectra(str(tmp_path), cache)
        for path in cache.glob("*.json"):
            path.write_text(path.read_text()[:20])
        assert companion.spectra(str(tmp_path), cache).equals(first)
        assert all(json.loads(path.read_text()) for path in cache.glob("*.json"))

    def test_two_that_write_at_once_leave_whole_entries(self, cache):
        rows = [{"order": "residual", "real": i / 7} for i in range(2000)]
        path = cache / "entry.json"
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            pool.starmap(checkpoints._keep, [(path, rows)] * 20)
        assert checkpoints._kept(path) == rows
        assert list(cache.iterdir()) == [path]

    def test_a_folder_that_cannot_be_written_to_costs_only_time(self, tmp_path):
        random_network(CONFIGS["bert"]).save_pretrained(tmp_path)
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert len(companion.spectra(str(tmp_path), blocked / "cache")) == 9


class TestBadInput:
    def test_missing_tensors_are_named(self, tmp_path, cache):
        network = random_network(CONFIGS["bert"])
        kept = {k: v for k, v in network.state_dict().items() if "layer.1.attention.self.value" not in k}
        network.save_pretrained(tmp_path, state_dict=kept)
        with pytest.raises(WeightsError, match=r"lacks the tensor encoder\.layer\.1\.attention\.self\.value\.weight"):
            companion.spectra(str(tmp_path), cache)

    def test_infinities_in_half_precision_are_named(self, tmp_path, cache):
        network = random_network(CONFIGS["llama"]).half()
        with torch.no_grad():
            network.base_model.layers[2].self_attn.o_proj.weight[0, 0] = torch.inf
        network.save_pretrained(tmp_path)
        with pytest.raises(WeightsError, match=r"layers\.2\.self_attn\.o_proj\.weight holds NaN or infinity"):
            companion.spectra(str(tmp_path), cache)

    def test_another_models_configuration_is_noticed(self, tmp_path, cache):
        random_network(CONFIGS["bert"]).save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 16}))
        with pytest.raises(WeightsError, match=r"has shape \(24, 24\) instead of \(16, 16\)"):
            companion.spectra(str(tmp_path), cache)

    def test_an_unknown_family_and_broken_weights_are_refused(self, tmp_path, cache):
        (tmp_path / "model.safetensors").write_bytes(b"broken")
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
        with pytest.raises(UnsupportedModelError, match="mamba"):
            companion.spectra(str(tmp_path), cache)
        random_network(CONFIGS["bert"]).config.save_pretrained(tmp_path)
        with pytest.raises(WeightsError, match="cannot be read"):
            companion.spectra(str(tmp_path), cache)
