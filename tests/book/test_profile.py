"""The paper's own models run through the same chapters, from a hub, and one that fails stops nothing."""

import copy
import json
import shutil

import glance
import pytest
import results
import runner
from hub import Hub
from networks import CONFIGS, random_network, save_tokenizer

from companion.sources import HUB_MODELS
from companion.study import Study

SERVED = {"bert-base-uncased": "bert", "gpt2": "gpt2", "gpt-neo-125m": "gpt-neo-short-window"}
SHARED = "albert-base-v2"
PAPER = dict(runner.PROFILES["paper"])
BROKEN = "gpt2-xl"  # the hub does not have it


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Small random networks under the names of the paper's."""
    root = tmp_path_factory.mktemp("hub")
    for name, kind in [*SERVED.items(), (SHARED, "albert")]:
        folder, config = root / HUB_MODELS[name][0], copy.deepcopy(CONFIGS[kind])
        config.max_position_embeddings = 128  # chapters read fifty words at once, and write as many
        random_network(config).save_pretrained(folder, max_shard_size="20KB")
        save_tokenizer(folder, length=128)
    server = Hub(root)
    server.revisions |= {HUB_MODELS[name][1] for name in [*SERVED, SHARED]}
    yield server
    server.close()


@pytest.fixture(scope="module")
def built(hub, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("layer-varying", "feed-forward"):
        shutil.copy(runner.SOURCES / f"{name}.md", sources)
    models = dict.fromkeys([*SERVED, BROKEN], "english")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(folder / "cache"))
        patch.setenv("COMPANION_CACHE", str(folder / "kept"))
        patch.setitem(
            runner.PROFILES, "paper", {name: {"models": models} for name in ("layer-varying", "feed-forward")}
        )
        runner.run("paper", sources=sources, built=folder / "built")
        yield folder


def test_every_model_that_the_hub_has_is_studied_with_its_revision(built):
    kept = {Study.read(path).name: Study.read(path) for path in (built / "kept" / "studies").glob("*.json")}
    assert set(kept) == set(SERVED)
    for one in kept.values():
        assert one.provenance["model"]["source"] == "hub"
        assert one.provenance["model"]["revision"]
        assert len(one.provenance["model"]["sha256"]) > 1  # sharded


def test_a_model_that_fails_is_on_the_page_with_its_reason_and_stops_nothing(built):
    table = glance.collect(built / "built")
    ran = table[table["model"].isin(list(SERVED))]
    assert {"C7", "C8", "C9", "C11"} <= set(ran["claim"])
    assert (ran[ran["model"] == "gpt2"]["verdict"] != "not run here").all()
    failed = table[table["model"] == BROKEN]
    assert set(failed["verdict"]) == {"not run here"}
    assert failed["effect"].str.contains("no revision|has no model").all()


def test_pages_say_which_profile_and_parameters_made_them(built):
    for row in runner.provenance(built / "built"):
        assert row["profile"] == "paper"
        assert BROKEN in row["parameters"]["models"]


def test_a_run_that_stopped_goes_on_with_the_models_that_are_done(built, monkeypatch):
    """The second run reads what is kept: the hub is asked for nothing but the model that failed."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    before = {path.name: path.stat().st_mtime for path in (built / "kept" / "studies").glob("*.json")}
    again = built / "again"
    again.mkdir()
    shutil.copy(built / "sources" / "feed-forward.md", again)
    runner.run("paper", sources=again, built=built / "built", force=True)
    assert before == {path.name: path.stat().st_mtime for path in (built / "kept" / "studies").glob("*.json")}


def test_results_go_into_another_repository_and_are_shown_there(built, tmp_path):
    results.pack(tmp_path / "r.zip", built / "kept" / "studies")
    assert results.unpack(tmp_path / "r.zip", tmp_path / "results") == sorted(SERVED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPANION_RESULTS", str(tmp_path / "results"))
        patch.setenv("COMPANION_CACHE", str(tmp_path / "kept"))
        patch.setitem(runner.PROFILES, "embedded", {"feed-forward": {"models": {}}})
        sources = tmp_path / "sources"
        sources.mkdir()
        shutil.copy(runner.SOURCES / "feed-forward.md", sources)
        runner.run("embedded", sources=sources, built=tmp_path / "built")
    notebook = json.loads((tmp_path / "built" / "feed-forward.ipynb").read_text(encoding="utf-8"))
    text = json.dumps(notebook["cells"])
    assert all(name in text for name in SERVED)
    assert not (tmp_path / "kept" / "studies").exists() or not list((tmp_path / "kept" / "studies").glob("*.json"))


def test_the_chapters_on_one_model_run_on_the_papers_too(hub, tmp_path):
    """ALBERT and both steering chapters, which keep no tables: each is executed with the paper's names."""
    causal = ["gpt2", "gpt-neo-125m"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(tmp_path / "cache"))
        patch.setenv("COMPANION_CACHE", str(tmp_path / "kept"))
        parameters = {
            "albert": {"others": {SHARED: "english"}},
            "steering": {
                "models": dict.fromkeys([*causal, "minilm"], "english") | {"rxnmapper": "reactions"},
                "shown": "gpt2",
            },
            "steering-price": {"models": causal, "layers": {"last": -1}},
        }
        assert set(parameters) < set(PAPER)
        for name, chosen in parameters.items():
            assert set(chosen) - {"layers"} <= set(PAPER[name])
            (tmp_path / "sources").mkdir(exist_ok=True)
            shutil.copy(runner.SOURCES / f"{name}.md", tmp_path / "sources")
        patch.setitem(runner.PROFILES, "paper", parameters)
        runner.run("paper", sources=tmp_path / "sources", built=tmp_path / "built")
    table = glance.collect(tmp_path / "built")
    ran = set(table.loc[table["verdict"] != "not run here", "model"].str.split(",").str[0])
    assert {SHARED, *causal} <= ran
