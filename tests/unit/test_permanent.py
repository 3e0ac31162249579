"""A permanent copy is an ordinary checkpoint, a LoRA adapter undoes itself, and nothing is half written."""

import json
import subprocess
import sys

import peft
import pytest
import torch
import transformers
from networks import CONFIGS, random_model, words
from safetensors import safe_open

import companion
from companion import steer, steered, unshared
from companion.errors import SteeringError

IDS = torch.randint(0, 28, (2, 9), generator=torch.Generator().manual_seed(1))
PLAIN = """
import sys, torch, transformers
assert "companion" not in sys.modules
cls = getattr(transformers, sys.argv[2])
torch.save(cls.from_pretrained(sys.argv[1])(torch.load(sys.argv[3])).logits, sys.argv[4])
assert "companion" not in sys.modules
"""


def some(d, seed=3):
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a, b):
    return float((a - b).detach().norm() / b.detach().norm()) < 1e-5


def tied(network):
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    return head is not None and head.weight.data_ptr() == embedding.weight.data_ptr()


@pytest.mark.filterwarnings("ignore:the values of this layer do not carry")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_copy_is_steered_as_the_context_steers_and_the_model_stays(name, tmp_path):
    model = random_model(name, tokenizer=words())
    d = some(model.layers[0].d_model)
    before = model.network(IDS).logits
    copy = steer(model, d, 5.0)
    with steered(model, d, 5.0):
        expected = model.network(IDS).logits
    assert close(copy.network(IDS).logits, expected)
    assert torch.equal(model.network(IDS).logits, before)
    copy.save_pretrained(tmp_path / "steered")
    again = companion.load(str(tmp_path / "steered"))
    assert close(again.network(IDS).logits, expected)
    assert tied(again.network) == tied(model.network)
    assert again.ids("a b").tolist() == model.ids("a b").tolist()


@pytest.mark.filterwarnings("ignore:the values of this layer do not carry")
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")  # peft asks it for an attribute by its old name
@pytest.mark.parametrize("name", CONFIGS)
def test_a_lora_adapter_steers_and_undoes_itself(name, tmp_path):
    model = random_model(name)
    d = some(model.layers[0].d_model)
    before = model.network(IDS).logits.clone()
    with steered(model, d, 5.0, layer=-2):
        expected = model.network(IDS).logits
    steer(model, d, 5.0, layer=-2).save_lora(tmp_path / "lora")
    wrapped = peft.PeftModel.from_pretrained(model.network, tmp_path / "lora")
    assert close(wrapped(input_ids=IDS).logits, expected)
    with wrapped.disable_adapter():
        assert torch.equal(wrapped(input_ids=IDS).logits, before)
    assert not close(before, expected)


def test_plain_transformers_loads_the_checkpoint_without_our_package(tmp_path):
    model = companion.load("zoo/gpt2")
    copy = steer(model, some(128), 3.0)
    copy.save_pretrained(tmp_path / "steered")
    torch.save(IDS, tmp_path / "ids.pt")
    arguments = [tmp_path / "steered", type(model.network).__name__, tmp_path / "ids.pt", tmp_path / "logits.pt"]
    subprocess.run([sys.executable, "-c", PLAIN, *map(str, arguments)], check=True, cwd=tmp_path, timeout=120)
    assert close(torch.load(tmp_path / "logits.pt"), copy.network(IDS).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "steered")
    assert tokenizer("the whale")["input_ids"] == model.tokenizer("the whale")["input_ids"]


def test_metadata_hold_the_factors_and_where_the_weights_came_from(tmp_path):
    model = companion.load("zoo/gpt2")
    copy = steer(model, some(128), 3.0, layer=4)
    copy.save_pretrained(tmp_path / "steered")
    with safe_open(tmp_path / "steered" / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"
        record = json.loads(file.metadata()["companion"])
        edited = file.get_tensor(f"{record['module']}.weight")
    assert (record["model"], record["layer"], record["strength"]) == ("zoo/gpt2", 4, 3.0)
    assert record["from"]["sha256"] == model.provenance["sha256"]
    change = torch.outer(torch.tensor(record["column"]), torch.tensor(record["row"]))
    original = model.network.state_dict()[f"{record['module']}.weight"]
    torch.testing.assert_close(edited, original + change.T, atol=1e-5, rtol=1e-5)


def test_what_is_there_is_not_overwritten_unasked_and_nothing_is_half_written(tmp_path, monkeypatch):
    copy = steer(random_model("bert", tokenizer=words()), some(24), 3.0)
    target = tmp_path / "steered"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    for save in (copy.save_pretrained, copy.save_lora):
        with pytest.raises(SteeringError, match="is there already"):
            save(target)
    assert [path.name for path in target.iterdir()] == ["notes.txt"]

    def full(*_, **__):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("companion.permanent.save_file", full)
        for save, where in ((copy.save_pretrained, target), (copy.save_lora, tmp_path / "new")):
            with pytest.raises(SteeringError, match="cannot be written: No space left"):
                save(where, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["steered"]
    assert (target / "notes.txt").read_text() == "mine"
    copy.save_pretrained(target, overwrite=True)
    assert not (target / "notes.txt").exists() and (target / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["steered"]


def test_a_sharded_checkpoint_carries_the_record_in_every_file(tmp_path, monkeypatch):
    copy = steer(random_model("gpt2"), some(24), 3.0)
    whole = type(copy.network).save_pretrained
    monkeypatch.setattr(
        type(copy.network), "save_pretrained", lambda self, path: whole(self, path, max_shard_size="10KB")
    )
    copy.save_pretrained(tmp_path / "steered")
    files = list((tmp_path / "steered").glob("*.safetensors"))
    assert len(files) > 1
    for path in files:
        with safe_open(path, "pt") as file:
            assert "companion" in file.metadata()
    assert close(companion.load(str(tmp_path / "steered")).network(IDS).logits, copy.network(IDS).logits)


@pytest.mark.parametrize("name", ["albert", "albert-two-groups-two-inner"])
def test_unshared_layers_compute_the_same_and_are_edited_one_by_one(name, tmp_path):
    model = random_model(name)
    alone = unshared(model)
    assert torch.equal(alone.network(IDS).logits, model.network(IDS).logits)
    assert len({id(site) for site in alone.sites}) == len(alone.sites) == len(model.sites)
    first = alone.layers[0].F.clone()
    with steered(alone, some(24), 5.0):
        assert torch.equal(alone.layers[0].F, first)
        one = alone.network(IDS).logits
    with steered(model, some(24), 5.0):
        assert not close(model.network(IDS).logits, one)
    steer(alone, some(24), 5.0).save_pretrained(tmp_path / "alone")
    assert close(companion.load(str(tmp_path / "alone")).network(IDS).logits, one)


def test_layers_that_share_nothing_are_left_as_they_are():
    model = random_model("bert")
    assert unshared(model) is model


def test_half_precision_that_overflows_is_refused():
    model = companion.from_network(random_model("gpt2").network.half())
    with pytest.raises(SteeringError, match=r"overflows weights of dtype torch\.float16"):
        steer(model, some(24), 1e6)
