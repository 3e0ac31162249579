"""Training goes on where it stopped, and refuses what it cannot use before it writes anything."""

import errno
import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import companion
from training import evaluate, loop
from training.corpus import IGNORED, MASK, Corpus, TrainingError, batch, masked, plain, read, train_tokenizer
from training.counts import BothSides, Trigram
from training.loop import learning_rate, train
from training.recipes import KINDS, POSITIONS, RECIPES, Recipe
from training.ship import ship
from training.words import log_odds, write_words

TINY = {kind: Recipe(kind, width=16, layers=2, heads=2, steps=24, batch=2) for kind in KINDS}


@pytest.fixture
def books(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    passages = companion.data.texts("english")
    (folder / "a.txt").write_text("\n\n".join(passages[:20]), encoding="utf-8")
    (folder / "b.txt").write_text("\n\n".join(passages[20:40]), encoding="utf-8")
    return folder


@pytest.fixture
def tokens(books):
    corpus = read(books)
    return corpus.tokens(train_tokenizer(corpus, POSITIONS))


def weights(folder):
    return torch.load(folder / "final.pt", weights_only=True)


def stop_after(monkeypatch, steps):
    """Let training be killed in the step after ``steps`` more."""
    calls = iter(range(steps + 1))
    original = loop.loss_of

    def killed(*arguments):
        if next(calls) == steps:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(loop, "loss_of", killed)


class TestCorpus:
    def test_a_missing_folder_an_empty_one_and_one_of_blank_files_are_refused(self, tmp_path):
        with pytest.raises(TrainingError, match="there is no folder"):
            read(tmp_path / "nowhere")
        with pytest.raises(TrainingError, match="holds no text"):
            read(tmp_path)
        (tmp_path / "blank.txt").write_text(" \n\n ")
        with pytest.raises(TrainingError, match="holds no text"):
            read(tmp_path)

    @pytest.mark.parametrize("content", [b"\xff\xfe\x00\x80 binary", b"text with a \0 in it"])
    def test_a_binary_file_is_named(self, books, content):
        (books / "c.txt").write_bytes(content)
        with pytest.raises(TrainingError, match=r"c\.txt"):
            read(books)

    def test_plain_joins_the_lines_of_a_paragraph_and_keeps_paragraphs_apart(self):
        assert plain("\ufeff\u201cOh,\u201d he\nsaid, \u2018_no_\u2019.\n\n\nNext\n") == "\"Oh,\" he said, 'no'.\nNext"

    def test_the_tokenizer_gives_every_text_back(self, books):
        corpus = read(books)
        tokenizer = train_tokenizer(corpus, POSITIONS)
        text = "Emma \u00e9 \u4e2d\n  twice  spaced"
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        assert tokenizer.mask_token_id == MASK

    def test_models_of_one_seed_see_the_same_tokens(self, tokens):
        first, _ = batch(tokens, 3, 16, seed=1, step=5)
        again, _ = batch(tokens, 3, 16, seed=1, step=5)
        other, _ = batch(tokens, 3, 16, seed=2, step=5)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_masked_positions_are_those_with_a_label_and_no_others_are_touched(self, tokens):
        ids, rng = batch(tokens, 8, 64, seed=0, step=0)
        inputs, labels = masked(ids, 0.3, rng)
        hidden = labels != IGNORED
        assert torch.equal(inputs[~hidden], ids[~hidden])
        assert torch.equal(labels[hidden], ids[hidden])
        assert (inputs[hidden] == MASK).all()
        assert 0.2 < hidden.float().mean() < 0.4


class TestLoop:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_resumed_run_ends_in_the_same_weights_and_log(self, tokens, tmp_path, monkeypatch, kind):
        train(TINY[kind], kind, tokens, tmp_path / "whole")
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_SECONDS", 0.0)
            stop_after(patch, 13)
            with pytest.raises(KeyboardInterrupt):
                train(TINY[kind], kind, tokens, tmp_path / "halved")
        assert not (tmp_path / "halved" / "final.pt").exists()
        train(TINY[kind], kind, tokens, tmp_path / "halved")
        whole, halved = weights(tmp_path / "whole"), weights(tmp_path / "halved")
        assert all(torch.equal(whole[key], halved[key]) for key in whole)
        logs = [(tmp_path / run / "log.jsonl").read_text() for run in ("whole", "halved")]
        assert logs[0] == logs[1]
        assert [json.loads(line)["step"] for line in logs[0].splitlines()] == list(range(24))

    def test_loss_falls(self, tokens, tmp_path):
        train(Recipe("gpt2", width=16, layers=2, heads=2, steps=60, batch=4, learning_rate=1e-2), "x", tokens, tmp_path)
        losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.2

    def test_a_corpus_smaller_than_one_batch_is_refused_before_anything_is_written(self, tmp_path):
        with pytest.raises(TrainingError, match="less than one batch of 256"):
            train(TINY["gpt2"], "gpt2", np.arange(255), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_a_state_cut_in_the_middle_is_named_and_the_one_before_goes_on(self, tokens, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "_SECONDS", 0.0)
            stop_after(patch, 5)
            with pytest.raises(KeyboardInterrupt):
                train(TINY["gpt2"], "gpt2", tokens, tmp_path)
        last = tmp_path / "state-00000005.pt"
        last.write_bytes(last.read_bytes()[:1000])
        with pytest.raises(TrainingError, match=r"state-00000005\.pt is damaged.*go on from state-00000004\.pt"):
            train(TINY["gpt2"], "gpt2", tokens, tmp_path)
        last.unlink()
        train(TINY["gpt2"], "gpt2", tokens, tmp_path)
        assert (tmp_path / "final.pt").exists()

    def test_a_full_disk_leaves_the_last_good_state(self, tokens, tmp_path, monkeypatch):
        original, writes = torch.save, iter(range(100))

        def full(content, stream):
            if next(writes) == 5:  # after three snapshots and two states
                stream.write(b"half of it")
                raise OSError(errno.ENOSPC, "No space left on device")
            original(content, stream)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "_SECONDS", 0.0)
            patch.setattr(torch, "save", full)
            with pytest.raises(TrainingError, match=r"No space left on device.*free some space"):
                train(TINY["gpt2"], "gpt2", tokens, tmp_path)
        assert not list(tmp_path.glob("*.tmp"))
        good = sorted(tmp_path.glob("state-*.pt"))[-1]
        assert torch.load(good, weights_only=True)["step"] >= 1
        train(TINY["gpt2"], "gpt2", tokens, tmp_path)
        assert (tmp_path / "final.pt").exists()

    def test_pairs_of_a_contrast_are_trained_equally_long_on_the_same_tokens(self):
        for a, b in companion.zoo.CONTRASTS.values():
            for suffix in ("", "-small-1", "-small-2", "-small-3"):
                left, right = RECIPES[a + suffix], RECIPES[b + suffix]
                same = ("width", "layers", "heads", "seed", "batch")
                assert all(getattr(left, name) == getattr(right, name) for name in same)
                assert abs(np.log(_labels(left) / _labels(right))) < 0.1
                assert left.masked != right.masked or left.steps == right.steps


def _labels(recipe):
    """How many predicted tokens a network is trained on."""
    return recipe.steps * recipe.batch * (loop.MASKED_SHARE * 128 if recipe.masked else 127)


class TestDistanceCost:
    @pytest.mark.parametrize("free", [0.25, 0.6])
    def test_attention_starts_at_the_nearest_neighbours_and_ends_with_every_token_free(self, free):
        costs = [loop.distance_cost(share / 100, free) for share in range(101)]
        assert costs[0] == float("inf")
        assert costs == sorted(costs, reverse=True)
        assert costs.index(0.0) == round(100 * free)
        coming_in = np.array([cost for cost in costs if 0 < cost < float("inf")])
        if len(coming_in):
            np.testing.assert_allclose(np.diff(coming_in), np.diff(coming_in)[0])  # little by little

    @pytest.mark.parametrize("cost", [float("inf"), 2.5])
    def test_a_mask_costs_only_what_is_further_than_a_neighbour(self, cost):
        mask = loop.attention_mask(torch.Size([2, 5]), cost)
        for i in range(5):
            for j in range(5):
                expected = 0.0 if abs(i - j) <= 1 else max(-cost, torch.finfo(torch.float32).min)
                assert (mask[:, 0, i, j] == expected).all()

    def test_nothing_is_added_when_every_token_is_free(self):
        assert loop.attention_mask(torch.Size([2, 5]), 0.0) is None

    @pytest.mark.parametrize("kind", ["albert", "bert"])
    def test_under_the_mask_a_network_does_not_see_what_is_hidden(self, kind):
        torch.manual_seed(0)
        network = Recipe(kind, width=16, layers=2, heads=2).network().eval()
        ids = torch.randint(2, 2048, (1, 12))
        changed = ids.clone()
        changed[0, 6] = 1
        mask = loop.attention_mask(ids.shape, float("inf"))
        with torch.no_grad():
            first, second = (network.base_model(input_ids=x, attention_mask=mask)[0][0] for x in (ids, changed))
        touched = (first - second).abs().sum(-1) > 1e-5
        assert touched.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]  # two layers, one step each


class TestShip:
    def test_a_run_becomes_a_checkpoint_that_load_reads(self, books, tokens, tmp_path, monkeypatch):
        monkeypatch.setitem(RECIPES, "bert", Recipe("bert", 16, 2, 2, steps=24, batch=2, snapshots=True))
        corpus, zoo = read(books), tmp_path / "zoo"
        tokenizer = train_tokenizer(corpus, POSITIONS)
        with pytest.raises(TrainingError, match="bert is not trained to its end"):
            ship(corpus, len(tokens), tokenizer, tmp_path / "runs", zoo, ["bert"])
        assert not zoo.exists()
        train(RECIPES["bert"], "bert", tokens, tmp_path / "runs" / "bert")
        ship(corpus, len(tokens), tokenizer, tmp_path / "runs", zoo, ["bert"])
        labels = {path.parent.name for path in zoo.glob("*/model.safetensors")}
        assert labels == {"bert", "bert@initial", "bert@1-percent", "bert@10-percent"}
        assert len((zoo / "SHA256SUMS").read_text().splitlines()) == 4
        final = weights(tmp_path / "runs" / "bert")
        shipped = companion.load(str(zoo / "bert")).network.state_dict()
        for key, tensor in shipped.items():
            assert torch.allclose(tensor, final[key], rtol=1e-3, atol=1e-6)
        assert "Not for use" in (zoo / "bert" / "README.md").read_text()


class TestBaselines:
    @given(st.lists(st.integers(0, 5), min_size=5, max_size=60), st.integers(0, 7), st.integers(0, 7))
    @settings(max_examples=30, deadline=None)
    def test_a_count_model_gives_probabilities_that_sum_to_one(self, ids, a, b):
        every = np.arange(2048)
        ids = np.array(ids)
        trigram, both = Trigram(ids), BothSides(ids)
        ends, middles = (np.full(2048, value) for value in (a, b))
        # every third entry of the flattened rows belongs to one row alone
        last = trigram.nats(np.stack([ends, middles, every], axis=1).ravel())[::3]
        between = both.nats(np.stack([ends, every, middles], axis=1).ravel())[::3]
        assert np.exp(-last).sum() == pytest.approx(1)
        assert np.exp(-between).sum() == pytest.approx(1)

    def test_the_trigram_is_interpolated_kneser_ney_by_hand(self):
        # a b c | a b d: after (a, b), c once of two, two kinds; c and d follow in one context each.
        ids = np.array([0, 1, 2, 0, 1, 3])
        kinds = np.zeros(2048)
        for pair in {(0, 1), (1, 2), (2, 0), (1, 3)}:
            kinds[pair[1]] += 1
        unigram = (kinds[2] + 0.5) / (kinds + 0.5).sum()
        bigram = (1 - 0.75) / 2 + 0.75 * 2 / 2 * unigram
        expected = (1 - 0.75) / 2 + 0.75 * 2 / 2 * bigram
        assert np.exp(-Trigram(ids).nats(np.array([0, 1, 2]))[0]) == pytest.approx(expected)


class TestEvaluation:
    def test_a_causal_loss_is_hugging_faces_own(self):
        torch.manual_seed(0)
        network = TINY["gpt2"].network().eval()
        ids = np.random.default_rng(0).integers(0, 2048, size=100)
        rows = torch.from_numpy(ids)[None]
        with torch.no_grad():
            own = network(input_ids=rows, labels=rows).loss
        ours = evaluate.next_token_nats(network, ids)
        # theirs averages the second token on, ours the third on
        first = torch.nn.functional.cross_entropy(network(input_ids=rows).logits[0, 0], rows[0, 1]).item()
        assert (ours.sum() + first) / 99 == pytest.approx(float(own), rel=1e-5)

    def test_in_a_long_text_every_token_has_at_least_half_a_window_before_it(self):
        torch.manual_seed(0)
        network = TINY["gpt2"].network().eval()
        ids = np.random.default_rng(0).integers(0, 2048, size=300)
        ours = evaluate.next_token_nats(network, ids)
        assert len(ours) == 298
        with torch.no_grad():
            window = network(input_ids=torch.from_numpy(ids[64:192])[None]).logits[0]
        expected = torch.nn.functional.cross_entropy(window[126], torch.tensor(ids[191]))
        assert ours[191 - 2] == pytest.approx(float(expected), rel=1e-5)

    def test_a_masked_loss_hides_one_token_in_eight_and_scores_each_once(self):
        torch.manual_seed(0)
        network = TINY["bert"].network().eval()
        ids = np.random.default_rng(0).integers(2, 2048, size=90)
        ours = evaluate.masked_token_nats(network, ids)
        inputs = torch.from_numpy(ids).clone()
        inputs[3::8] = MASK
        with torch.no_grad():
            logits = network(input_ids=inputs[None]).logits[0]
        expected = torch.nn.functional.cross_entropy(logits[3::8], torch.from_numpy(ids[3::8]), reduction="none")
        assert ours[np.arange(3, 90, 8)[:-1] - 1] == pytest.approx(expected.numpy()[:-1], rel=1e-4)


BOOKS = {
    "a.txt": "The ship left. A ship and a ship, with Ahab and sails. The captain of it. " * 30,
    "b.txt": "The sister wrote. A sister and a sister, with Jane and letters. The aunt of it. " * 30,
    "c.txt": "The ship and the sister, of a captain and an aunt. " * 10,
}


class TestWords:
    """The lists that the steering chapters steer towards."""

    def test_a_word_of_one_book_leads_there_and_a_word_of_both_leads_nowhere(self):
        table = log_odds(BOOKS, "a.txt", "b.txt").set_index("word")
        assert table.loc["ship", "z"] > 3 and table.loc["sister", "z"] < -3
        assert abs(table.loc["the", "log_odds"]) < 0.05
        assert table["name"][["ahab", "jane"]].all() and not table["name"][["ship", "and"]].any()

    def test_swapping_the_books_turns_every_sign(self):
        one, other = (log_odds(BOOKS, *pair) for pair in (("a.txt", "b.txt"), ("b.txt", "a.txt")))
        np.testing.assert_allclose(one["log_odds"], -other["log_odds"])
        np.testing.assert_allclose(one["z"], -other["z"])

    def test_a_corpus_without_the_two_books_is_refused_and_nothing_is_written(self, books, tmp_path):
        with pytest.raises(TrainingError, match=r"no pg2701\.txt"):
            write_words(read(books), tmp_path / "words.csv")
        assert not (tmp_path / "words.csv").exists()

    def test_the_list_holds_no_names_and_only_words_that_are_much_commoner_in_their_book(self, tmp_path):
        texts = {"pg2701.txt": BOOKS["a.txt"], "pg1342.txt": BOOKS["b.txt"], "c.txt": BOOKS["c.txt"]}
        write_words(Corpus(texts, {}), tmp_path / "words.csv")
        table = pd.read_csv(tmp_path / "words.csv").groupby("side")["word"].apply(set)
        assert table["sea"] == {"ship", "left", "sails", "captain"}
        assert table["parlour"] == {"sister", "wrote", "letters", "aunt"}


def test_a_restart_begins_a_second_cosine_where_all_tokens_are_free():
    once = Recipe("albert", steps=1000, learning_rate=1e-3, free=0.5)
    twice = Recipe("albert", steps=1000, learning_rate=1e-3, free=0.5, restart=2e-3)
    rates = [learning_rate(twice, step) for step in range(1000)]
    assert rates[:500] == [learning_rate(once, step) for step in range(500)]
    assert rates[500] < 1e-4  # warm-up again
    assert max(rates[500:]) == pytest.approx(2e-3, rel=0.4)
    assert rates[-1] == pytest.approx(1e-4, rel=0.01)
