"""One load for wheels, folders and the hub, and a clear word where there is nothing to load."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from hub import COMMIT, Hub
from networks import CONFIGS, random_network, save_tokenizer

import companion
from companion import sources
from companion.errors import HubError, ModelNotFoundError, TextError, WeightsError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with tokenizer, as anybody would save one."""
    path = tmp_path_factory.mktemp("checkpoint")
    random_network(CONFIGS["bert"]).save_pretrained(path)
    save_tokenizer(path, [*"abcdefghijklmnopqrstuvwxyz", "whale"])
    return path


def test_wheels_load_with_their_checksum_and_their_head(minilm, rxnmapper):
    assert minilm.provenance["sha256"]["model.safetensors"] == sources.WHEELS["minilm"].sha256
    assert (minilm.provenance["source"], minilm.provenance["revision"]) == ("wheel", "0.1.0")
    assert len(minilm.layers) == 6
    assert not minilm.network.training
    assert type(rxnmapper.network).__name__ == "AlbertForMaskedLM"


def test_the_reaction_tokenizer_knows_every_word_of_its_vocabulary(rxnmapper):
    tokenizer = rxnmapper.tokenizer
    words = [w for w in tokenizer.get_vocab() if not w.startswith(("[PAD", "[UNK", "[CLS", "[SEP", "[MASK", "[unused"))]
    for word in words:
        assert tokenizer.tokenize(word) == [word]
    reaction = "CC(=O)Cl.[NH4+].C1CCCCC1Br>>C[C@H](N)c1ccccc1%12.O"
    assert "".join(tokenizer.tokenize(reaction)) == reaction
    assert tokenizer.tokenize("C!C") == ["C", "[UNK]", "C"]


def test_the_masked_head_of_the_reaction_model_reads_chemistry(rxnmapper):
    """Independent of any layer matrix: with a right tokenizer the trained head restores a masked symbol."""
    ids = rxnmapper.ids("CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1")
    positions = torch.arange(1, ids.shape[1] - 1)
    masked = ids.repeat(len(positions), 1)
    masked[torch.arange(len(positions)), positions] = rxnmapper.tokenizer.mask_token_id
    guesses = rxnmapper.network(input_ids=masked).logits[torch.arange(len(positions)), positions].argmax(-1)
    assert (guesses == ids[0, positions]).double().mean() > 0.95


def test_a_folder_loads_like_the_network_that_was_saved(folder):
    model = companion.load(str(folder))
    original = random_network(CONFIGS["bert"])
    ids = torch.arange(9)[None]
    torch.testing.assert_close(model.network(input_ids=ids).logits, original(input_ids=ids).logits)
    assert model.tokenizer.tokenize("whale a") == ["whale", "a"]
    assert model.provenance["source"] == "folder"


def test_long_texts_are_cut_into_windows_and_nothing_is_lost(folder):
    model = companion.load(str(folder))
    text = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3
    windows = model.windows(text)
    assert [len(w) for w in windows] == [32, 32, 20]
    inner = [token for window in windows for token in window[1:-1]]
    assert inner == model.tokenizer(text, add_special_tokens=False)["input_ids"]
    with pytest.raises(TextError, match="32 positions"):
        model.ids(text)


def test_a_sharded_checkpoint_and_an_old_pickle_load_alike(folder, tmp_path):
    network = random_network(CONFIGS["gpt2"])
    network.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    (tmp_path / "pickle").mkdir()
    network.config.save_pretrained(tmp_path / "pickle")
    torch.save(network.state_dict(), tmp_path / "pickle" / "pytorch_model.bin")
    sharded, pickled = (companion.load(str(tmp_path / name)) for name in ("sharded", "pickle"))
    for a, b in zip(sharded.layers, pickled.layers, strict=True):
        assert torch.equal(a.F, b.F)


def test_a_pickle_that_would_run_code_is_refused(folder, tmp_path):
    shutil.copy(folder / "config.json", tmp_path)

    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"x": Payload()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin"):
        companion.load(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_missing_tensors_are_refused_instead_of_drawn_at_random(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    del tensors["bert.encoder.layer.1.attention.self.value.weight"]
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    with pytest.raises(WeightsError, match=r"layer\.1\.attention\.self\.value\.weight"):
        companion.load(str(tmp_path / "m"))


@pytest.mark.parametrize("harm", ["cut", "shape", "nan"])
def test_damaged_weights_are_refused(folder, tmp_path, harm):
    shutil.copytree(folder, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-500])
    else:
        tensors = safetensors.torch.load_file(file)
        name = "bert.encoder.layer.0.output.dense.weight"
        tensors[name] = torch.ones(2, 3) if harm == "shape" else tensors[name] * torch.nan
        safetensors.torch.save_file(tensors, file, {"format": "pt"})
    with pytest.raises(WeightsError):
        companion.load(str(tmp_path / "m"))


def test_a_swapped_wheel_is_refused_by_its_checksum(monkeypatch):
    wheel = sources.WHEELS["rxnmapper"]
    monkeypatch.setitem(sources.WHEELS, "rxnmapper", sources.Wheel(**(vars(wheel) | {"sha256": "0" * 64})))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin is damaged or was swapped"):
        companion.load("rxnmapper")


def test_a_wheel_that_is_not_installed_says_how_to_install_it(monkeypatch):
    wheel = sources.WHEELS["rxnfp"]
    monkeypatch.setitem(sources.WHEELS, "rxnfp", sources.Wheel(**(vars(wheel) | {"package": "no-such-package"})))
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps no-such-package"):
        companion.load("rxnfp")


def test_rxnfp_loads_where_its_wheel_is_installed_and_says_how_to_get_it_elsewhere():
    if importlib.util.find_spec("rxnfp"):
        model = companion.load("rxnfp")
        assert (type(model.network).__name__, len(model.layers)) == ("BertForMaskedLM", 12)
    else:
        with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps rxnfp==0\.1\.0"):
            companion.load("rxnfp")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("minilmm", "did you mean 'minilm'"),
        ("no-model", "known are zoo/"),
        ("./no/folder", "no folder"),
        ("~/nothing-here", "no folder"),
        ("zoo/gpt3", "it has zoo/"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(name, says):
    with pytest.raises(ModelNotFoundError, match=says):
        companion.load(name)


def test_a_folder_without_a_model_says_what_is_missing(tmp_path, folder):
    with pytest.raises(ModelNotFoundError, match=r"config\.json is missing"):
        companion.load(str(tmp_path))
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(ModelNotFoundError, match="no weights"):
        companion.load(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="not valid JSON"):
        companion.load(str(tmp_path))


def test_an_architecture_without_adapter_is_refused_before_its_weights_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(companion.CompanionError, match="'mamba'; there is one for albert, bert, distilbert, gemma"):
        companion.load(str(tmp_path))


def test_an_adapter_without_its_base_says_what_to_do(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"merge_and_unload"):
        companion.load(str(tmp_path))


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(folder, tmp_path):
    network = random_network(CONFIGS["bert"])
    network.resize_token_embeddings(20)
    network.save_pretrained(tmp_path)
    for path in folder.glob("token*"):
        shutil.copy(path, tmp_path)
    with pytest.raises(TextError, match="20 rows"):
        companion.load(str(tmp_path))


def test_roberta_reads_no_more_tokens_than_it_has_positions_for(folder):
    """Its table of positions begins behind the row of the padding token."""
    network = random_network(CONFIGS["roberta"])
    network.resize_token_embeddings(100)
    model = companion.from_network(network, companion.load(str(folder)).tokenizer)
    windows = model.windows("whale " * 100)
    assert max(map(len, windows)) == 30
    network.base_model(torch.tensor(windows[:1]))


def test_a_model_without_tokenizer_says_so_when_given_text(tmp_path):
    random_network(CONFIGS["gpt2"]).save_pretrained(tmp_path)
    model = companion.load(str(tmp_path))
    assert model.tokenizer is None
    with pytest.raises(TextError, match="without a tokenizer"):
        model.windows("text")


@pytest.mark.parametrize("text", ["", "  \n ", None, 3])
def test_an_empty_text_is_refused(minilm, text):
    with pytest.raises(TextError, match="empty"):
        minilm.windows(text)


HUB_SCRIPT = """
import sys, time, companion
time.sleep = lambda seconds: None  # the hub library waits between its retries; a test need not
for name in sys.argv[1:]:
    try:
        model = companion.load(name)
        print("loaded", model.provenance["source"], model.provenance["revision"], float(model.layers[0].F.sum()))
    except companion.CompanionError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def hub(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    for name in ("org/model", "org/gated", "org/secret", "albert/albert-base-v2"):
        shutil.copytree(folder, root / name)
    (root / "org" / "old").mkdir()
    network = random_network(CONFIGS["bert"])
    network.config.save_pretrained(root / "org" / "old")
    torch.save(network.state_dict(), root / "org" / "old" / "pytorch_model.bin")
    server = Hub(root)
    server.refuse = {"org/gated": 403, "org/secret": 401, "org/broken": 500}
    yield server
    server.close()


@pytest.fixture
def from_hub(hub, tmp_path, monkeypatch):
    """Load in a process of its own, whose hub is the local server and whose cache is empty."""

    def run(*names, **environment):
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        done = subprocess.run([sys.executable, "-c", HUB_SCRIPT, *names], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_hub_models_are_downloaded_once_and_their_commit_recorded(from_hub, folder):
    expected = str(float(companion.load(str(folder)).layers[0].F.sum()))
    first = from_hub("org/model@v1", "org/old")  # the second has pickled weights only
    assert [line.split() for line in first] == [["loaded", "hub", COMMIT, expected]] * 2
    assert from_hub("org/model@v1", HF_HUB_OFFLINE="1") == first[:1]


def test_the_hubs_refusals_become_clear_errors(from_hub):
    nothing, revision, gated, secret = from_hub("org/nothing", "org/model@v9", "org/gated", "org/secret")
    assert nothing.startswith("ModelNotFoundError the hub has no model 'org/nothing'")
    assert revision.startswith("HubError org/model has no revision 'v9'")
    assert gated.startswith("HubError org/gated is gated")
    assert secret.startswith("ModelNotFoundError the hub has no model 'org/secret' (or it is private")


def test_a_download_that_breaks_in_the_middle_goes_on(hub, from_hub, folder):
    expected = str(float(companion.load(str(folder)).layers[0].F.sum()))
    hub.breaks = 1
    (said,) = from_hub("org/model")
    assert hub.breaks == 0
    assert said.split() == ["loaded", "hub", COMMIT, expected]


def test_a_busy_hub_is_asked_again(hub, from_hub):
    hub.busy = 1
    (said,) = from_hub("org/model")
    assert hub.busy == 0
    assert said.startswith("loaded hub")


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_no_network_is_said_with_the_way_out(from_hub, environment):
    (said,) = from_hub("gpt2", **environment)
    assert said.startswith("HubError openai-community/gpt2 is not in the local cache")
    assert "minilm" in said


def test_the_errors_share_one_base():
    assert all(issubclass(e, companion.CompanionError) for e in (HubError, ModelNotFoundError, WeightsError, TextError))
