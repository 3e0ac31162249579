"""The page that shows how to write an adapter shows one that works."""

import re

import runner
import torch
import transformers
from networks import random_network

import companion
from companion import hooks
from companion.adapters import ADAPTERS


def test_the_adapter_on_the_page_reproduces_the_networks_attention(monkeypatch):
    page = (runner.ROOT / "book" / "adding-a-model.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.setattr("companion.adapters.ADAPTERS", ADAPTERS)
    monkeypatch.delitem(ADAPTERS, "starcoder2", raising=False)
    exec(code, {})  # the page's own example
    config = transformers.Starcoder2Config(
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=60,
        max_position_embeddings=32,
        sliding_window=3,
    )
    model = companion.from_network(random_network(config))
    ids = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    base = model.network.base_model
    x, update = (hooks.states(base, model.sites, ids, stage) for stage in ("input_norm", "update"))
    for index, layer in enumerate(model.layers):
        torch.testing.assert_close(layer.attend(x[index]), update[index], atol=1e-5, rtol=1e-5)


def test_the_page_names_every_family():
    page = (runner.ROOT / "book" / "adding-a-model.md").read_text(encoding="utf-8").lower()
    head = page[: page.index("```python")].replace("-", "").replace("_", "")
    for name in ADAPTERS:
        if name != "starcoder2":
            assert name.replace("-", "").replace("_", "") in head, name
