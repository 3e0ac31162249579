"""Tokens are compared layer by layer, from the embedding to the end, window by window."""

import numpy as np
import pytest
import torch
import transformers
from networks import CONFIGS, random_network

import companion
from companion.errors import TextError


class Letters:
    """A tokenizer that reads letters, and cuts where it is told to."""

    model_max_length = 8

    @staticmethod
    def get_vocab():
        return {letter: ord(letter) - 97 for letter in "abcdefghijklmnopqrstuvwxyz"}

    def __call__(self, text, max_length, **_):
        ids = [ord(letter) - 97 for letter in text]
        windows = [ids[i : i + max_length] for i in range(0, len(ids), max_length)]
        return {"input_ids": windows, "special_tokens_mask": [[0] * len(window) for window in windows]}


@pytest.fixture(params=["bert", "albert", "gpt2", "gpt-neo-short-window"])
def model(request):
    return companion.from_network(random_network(CONFIGS[request.param]), Letters(), request.param)


def mean_cosine(x):
    cosines = torch.nn.functional.cosine_similarity(x[:, None].double(), x[None].double(), dim=-1)
    n = len(x)
    return float((cosines.sum() - n) / (n * (n - 1)))


def test_rows_are_hugging_faces_hidden_states_and_the_end_of_the_stream(model):
    table = companion.similarity(model, ["banana"])
    with torch.no_grad():
        hidden = model.network.base_model(model.ids("banana"), output_hidden_states=True).hidden_states
    assert list(table["layer"]) == list(range(len(model.sites) + 1))
    assert table["n"].eq(6).all()
    # The last of GPT's hidden states has its final norm applied; the stream behind the layer has not.
    expected = [mean_cosine(h[0]) for h in hidden[:-1]]
    expected.append(mean_cosine(model.states("banana", "out")[-1]))
    np.testing.assert_allclose(table["cosine"], expected, atol=1e-5)


def test_windows_of_a_long_text_count_by_their_tokens(model):
    parts = [companion.similarity(model, [part]) for part in ("abcdefgh", "ijkl")]
    whole = companion.similarity(model, ["abcdefghijkl"])
    np.testing.assert_allclose(whole["cosine"], (8 * parts[0]["cosine"] + 4 * parts[1]["cosine"]) / 12, atol=1e-6)
    assert whole["n"].eq(12).all()


def test_equal_tokens_have_cosine_one_where_positions_do_not_count():
    network = random_network(transformers.GPT2Config(n_embd=24, n_layer=2, vocab_size=60, n_positions=32, n_head=4))
    with torch.no_grad():
        network.transformer.wpe.weight.zero_()
    table = companion.similarity(companion.from_network(network, Letters(), "x"), ["aaaaa"])
    np.testing.assert_allclose(table["cosine"], 1, atol=1e-6)


def test_a_text_of_one_token_has_nothing_to_compare(model):
    with pytest.raises(TextError, match="two tokens"):
        companion.similarity(model, ["a", "b"])
