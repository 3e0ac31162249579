"""What the package carries loads without a network, is what its cards say, and is guarded by checksums."""

import shutil

import pytest
import torch
import transformers

import companion
from companion import zoo
from companion.errors import ModelNotFoundError, WeightsError
from training.evaluate import excerpt_nats
from training.recipes import RECIPES, SHIPPED

FINAL = [name for name in zoo.names() if "@" not in name]


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_loads_and_is_what_its_card_says(name):
    model = companion.load(name)
    card = zoo.card(name)
    assert model.provenance["source"] == "zoo"
    assert model.provenance["sha256"] == {"model.safetensors": zoo.checksum(name)}
    assert len(model.layers) == card["layers"]
    assert (model.layers[0].d_model, model.layers[0].n_heads) == (card["width"], card["heads"])
    assert sum(p.numel() for p in model.network.parameters()) == card["parameters"]
    assert len(model.tokenizer) == 2048
    assert model.windows("A text of any length. " * 100)[0].__len__() == card["positions"]


@pytest.mark.parametrize("name", FINAL)
def test_the_cards_figure_on_the_held_out_passages_is_computed_again(name):
    expected = zoo.card(name)["held_out"]["excerpt_nats"]
    assert excerpt_nats(companion.load(name)) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", zoo.names())
def test_a_checkpoint_along_training_is_the_same_run_as_its_model(name):
    base, _, label = name.partition("@")
    card, whole = zoo.card(name), zoo.card(base)
    steps = {"": 1, "initial": 0, "1-percent": 0.01, "10-percent": 0.1}[label] * whole["steps"]
    assert card["step"] == round(steps)
    assert (card["seed"], card["data"]) == (whole["seed"], whole["data"])


@pytest.mark.parametrize("name", [name for name in zoo.names() if name.endswith("@initial")])
def test_the_initial_weights_are_those_of_the_seed(name):
    recipe = RECIPES[name.removeprefix("zoo/").partition("@")[0]]
    torch.manual_seed(recipe.seed)
    expected = recipe.network().state_dict()
    for key, tensor in companion.load(name).network.state_dict().items():
        torch.testing.assert_close(tensor, expected[key].half().float(), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "masks"),
    [
        ("zoo/bert", {"full"}),
        ("zoo/gpt2", {"causal"}),
        ("zoo/causal-bert", {"causal"}),
        ("zoo/gpt-neo", {"causal", "local"}),
        ("zoo/gpt-neo-global", {"causal"}),
    ],
)
def test_masks_are_those_of_the_kinds(name, masks):
    model = companion.load(name)
    assert {layer.mask for layer in model.layers} == masks
    assert {layer.window for layer in model.layers if layer.mask == "local"} <= {32}
    assert (model.layers[0].gain is None) == (name in ("zoo/albert", "zoo/bert", "zoo/causal-bert"))  # post-norm


def test_a_model_of_the_zoo_is_a_plain_hugging_face_folder():
    network = transformers.AutoModelForCausalLM.from_pretrained(zoo.folder("zoo/gpt2"), dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(zoo.tokenizer())
    model = companion.load("zoo/gpt2")
    ids = torch.tensor([tokenizer("The whale sank the ship.")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(network(input_ids=ids).logits, model.network(input_ids=ids).logits)


@pytest.mark.parametrize("damage", ["cut", "swapped", "gone"])
def test_damaged_weights_are_refused(tmp_path, monkeypatch, damage):
    copy = tmp_path / "zoo"
    shutil.copytree(zoo.tokenizer().parent, copy)
    monkeypatch.setattr(zoo, "_ROOT", copy)
    weights = copy / "gpt2" / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "swapped":
        shutil.copy(copy / "gpt-neo" / "model.safetensors", weights)
    else:
        weights.unlink()
    with pytest.raises(WeightsError, match="reinstall the package"):
        companion.load("zoo/gpt2")


@pytest.mark.parametrize("name", ["zoo/no-such", "zoo/", "zoo/../data", "zoo/gpt2@nowhere", "zoo/tokenizer"])
def test_an_unknown_name_is_answered_with_what_there_is(name):
    with pytest.raises(ModelNotFoundError, match="it has zoo/"):
        companion.load(name)


def test_the_package_carries_what_make_zoo_trains():
    assert set(FINAL) == {f"zoo/{name}" for name in SHIPPED}


def test_what_ships_stays_small():
    size = sum(path.stat().st_size for path in zoo.tokenizer().parent.rglob("*") if path.is_file())
    assert size <= 40 * 2**20
