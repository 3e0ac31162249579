"""What the tilt is compared with: nulls that are what they say, tests that reject as often as they say."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import CONFIGS, random_model
from test_models import folder  # noqa: F401
from test_tracing import TEXTS

import companion
from companion import hooks, spectrum, trace

IDS = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def readers(folder):  # noqa: F811
    """Networks of all kinds that read the same letters."""
    tokenizer = companion.load(str(folder)).tokenizer
    return {name: random_model(name, tokenizer=tokenizer) for name in ("bert", "gpt2", "phi", "opt-post-norm", "llama")}


class TestShuffled:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_entries_stay_and_structure_goes(self, name):
        model = random_model(name)
        before = {key: value.clone() for key, value in model.network.state_dict().items()}
        other = companion.shuffled(model, 0)
        changed = 0
        for key, value in other.network.state_dict().items():
            torch.testing.assert_close(value.flatten().sort()[0], before[key].flatten().sort()[0])
            changed += not torch.equal(value, before[key])
            assert torch.equal(model.network.state_dict()[key], before[key])
        separate = len({id(layer) for layer in model.layers})
        maps = 2 if "gpt2" in name or "gpt-neox" in name or "phi3" in name else 4
        assert changed == separate * maps
        assert not torch.allclose(other.layers[0].F, model.layers[0].F)

    def test_a_seed_is_a_shuffle(self):
        model = random_model("bert")
        first, again, second = (companion.shuffled(model, seed).layers[0].F for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.allclose(first, second)


class TestTwin:
    def test_singular_values_are_those_of_the_original(self):
        F = random_model("bert").layers[0].F
        torch.testing.assert_close(torch.linalg.svdvals(companion.twin(F, 3)), torch.linalg.svdvals(F))

    def test_the_principal_eigenspace_of_a_twin_is_a_uniformly_random_subspace(self):
        """Its mean alignment with a fixed vector is that of chance, for lines and for planes."""
        F = torch.diag(torch.tensor([3.0, 1.0, 0.5, 0.1, 0.0], dtype=torch.float64))
        fixed = torch.eye(5, dtype=torch.float64)[:1]
        found = {1: [], 2: []}
        for seed in range(800):
            basis = spectrum(companion.twin(F, seed)).basis
            found[basis.shape[1]].append(float(companion.alignment(fixed, basis)[0]))
        for dimension, values in found.items():
            error = np.std(values) / len(values) ** 0.5
            assert abs(np.mean(values) - companion.chance_alignment(5, dimension)) < 4 * error


class TestNormScaled:
    @pytest.mark.parametrize("name", ["gpt2", "llama"])
    def test_to_first_order_it_is_what_attention_of_one_token_adds_to_the_stream(self, readers, name):
        """One token attends to itself: its update is the matrix times the token, biases and eps apart."""
        model = readers[name]
        ids = torch.tensor([model.windows("q")[0][:1]])
        base = model.network.base_model
        x, update = (hooks.states(base, model.sites, ids, stage)[:, 0].double() for stage in ("in", "update"))

        class OneToken:
            network, sites, device = model.network, model.sites, model.device
            encoded = staticmethod(lambda _texts: [(0, ids[0].tolist())])

        for i, matrix in enumerate(companion.norm_scaled(OneToken, ["q"])):
            layer = model.layers[i]
            shift = torch.zeros(layer.d_model, dtype=torch.float64)
            bias = getattr(model.sites[i].input_norm, "bias", None)
            if bias is not None:
                shift = shift + layer.F @ bias.double()
            for W, b in ((layer.W_O.double(), layer.b_V), (torch.eye(layer.d_model).double(), layer.b_O)):
                shift = shift + (W @ b.double() if b is not None else 0)
            torch.testing.assert_close(matrix @ x[i, 0] + shift, update[i, 0], atol=1e-4, rtol=1e-3)

    def test_a_post_norm_network_needs_none(self, readers):
        with pytest.raises(companion.CompanionError, match="post-norm"):
            companion.norm_scaled(readers["bert"], TEXTS)


class TestAblated:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_without_the_feed_forward_part_a_layer_adds_attention_alone(self, name):
        model = random_model(name)
        base = model.network.base_model
        whole = hooks.states(base, model.sites, IDS, "out")
        with companion.ablated(model, "feed-forward"):
            out, attention = (hooks.states(base, model.sites, IDS, stage) for stage in ("out", "attention"))
        for i, site in enumerate(model.sites):
            expected = attention[i]
            if site.input_norm is None:
                second = site.output_norm or site.block.final_layer_norm  # OPT's has no reading
                expected = second(site.norm(expected))
            torch.testing.assert_close(out[i], expected)
        assert not torch.allclose(whole, out)
        torch.testing.assert_close(hooks.states(base, model.sites, IDS, "out"), whole, atol=0, rtol=0)

    @pytest.mark.parametrize("name", CONFIGS)
    def test_without_softmax_attention_is_that_of_equal_weights(self, name):
        model = random_model(name)
        base = model.network.base_model
        read = "in" if model.sites[0].input_norm is None else "input_norm"
        before = hooks.states(base, model.sites, IDS, "update")
        with companion.ablated(model, "softmax"):
            x, update = (hooks.states(base, model.sites, IDS, stage) for stage in (read, "update"))
        for i, layer in enumerate(model.layers):
            torch.testing.assert_close(layer.attend(x[i], "uniform"), update[i], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(before, update)
        torch.testing.assert_close(hooks.states(base, model.sites, IDS, "update"), before, atol=0, rtol=0)

    def test_a_padded_batch_and_an_unknown_part_are_refused(self, readers):
        with (
            pytest.raises(companion.CompanionError, match="batch_size=1"),
            companion.ablated(readers["bert"], "softmax"),
        ):
            trace(readers["bert"], TEXTS)
        with companion.ablated(readers["bert"], "softmax"):
            assert len(trace(readers["bert"], TEXTS, batch_size=1))
        with pytest.raises(companion.CompanionError, match="part='ffn' is unknown"), companion.ablated(None, "ffn"):
            pass


class TestTurns:
    @pytest.mark.parametrize("name", ["bert", "gpt2", "phi", "opt-post-norm", "llama"])
    def test_the_parts_add_up_to_the_whole_change(self, readers, name):
        table = companion.turns(trace(readers[name], TEXTS, targets="own"))
        wide = table.pivot_table(index=["text", "layer"], columns="part", values="change")
        parts = {"bert": 4, "opt-post-norm": 3}.get(name, 2)
        assert wide.shape == (len(TEXTS) * len(readers[name].layers), parts + 1)
        np.testing.assert_allclose(wide.drop(columns="whole").sum(axis=1), wide["whole"], atol=1e-12)

    def test_a_part_is_the_difference_between_two_stages(self, readers):
        kept = trace(readers["bert"], TEXTS, targets="own")
        gamma = kept.assign(mean=kept["gamma"] / kept["n"]).set_index(["text", "layer", "stage"])["mean"]
        table = companion.turns(kept).set_index(["text", "layer", "part"])["change"]
        for text, layer in ((0, 0), (3, 2)):
            for part, stage, before in (
                ("attention", "attention", "in"),
                ("norm", "norm", "attention"),
                ("feed-forward", "ffn", "norm"),
                ("second norm", "out", "ffn"),
            ):
                expected = gamma[text, layer, stage] - gamma[text, layer, before]
                assert table[text, layer, part] == pytest.approx(expected)

    def test_a_trace_without_own_eigenspaces_is_refused(self, readers):
        with pytest.raises(companion.CompanionError, match="no rows by text of the target 'own'"):
            companion.turns(trace(readers["bert"], TEXTS, targets="random"))


def _table(own, random, layers=1):
    """A trace in which alignment with each subspace is as given: (layers,) and (layers, draws)."""
    rows = []
    for layer in range(layers):
        for target, value in [("own", own[layer]), *((f"random-{i}", v) for i, v in enumerate(random[layer]))]:
            for stage in ("in", "attention"):
                rows.append(("m", layer, stage, target, 0, 100, 100 * value, int(100 * value)))
    return pd.DataFrame(rows, columns=["model", "layer", "stage", "target", "text", "n", "gamma", "risen"])


class TestAgainstRandom:
    def test_p_counts_the_draws_that_are_at_least_as_large(self):
        found = companion.against_random(_table([0.5], [[0.1, 0.5, 0.6, 0.2]])).iloc[0]
        assert found["gamma_p"] == found["rho_p"] == 3 / 5
        assert found["draws"] == 4
        assert found["gamma_effect"] == pytest.approx((0.5 - 0.35) / np.std([0.1, 0.5, 0.6, 0.2], ddof=1))

    def test_on_random_networks_with_foreign_eigenspaces_it_rejects_at_its_nominal_rate(self, readers):
        """Eigenspaces of matrices that have nothing to do with the network take a random place."""
        model = readers["bert"]
        d, layers = model.layers[0].d_model, len(model.layers)
        p = []
        for seed in range(40):
            # Diagonal apart from the basis, so that a line is certain: dimension plays no part.
            twins = [companion.twin(torch.eye(d).double(), 1000 * seed + i)[0] for i in range(layers)]
            lines = [torch.outer(v, v) for v in twins]
            table = trace(model, TEXTS, targets=("own", "random"), matrices=lines, draws=39, seed=seed)
            p.extend(companion.against_random(table)["rho_p"])
        rejected = sum(value <= 0.1 for value in p)
        low, high = companion.share(rejected, len(p))[1:]
        assert low <= 0.1 <= high

    def test_without_random_subspaces_there_is_nothing_to_compare(self, readers):
        with pytest.raises(companion.CompanionError, match="lacks the target"):
            companion.against_random(trace(readers["bert"], TEXTS, targets="own"))


class TestAgainstOtherLayers:
    def test_layers_that_go_with_their_own_eigenspaces_are_found(self):
        rows = [
            ("m", i, stage, "own" if i == j else f"layer-{j}", 0, 100, 50.0, 80 if i == j else 50)
            for i in range(6)
            for j in range(6)
            for stage in ("in", "attention")
        ]
        table = pd.DataFrame(rows, columns=["model", "layer", "stage", "target", "text", "n", "gamma", "risen"])
        found = companion.against_other_layers(table)
        assert found["difference"] == pytest.approx(0.3)
        assert found["p"] == pytest.approx(1 / 720, abs=2e-3)
        shifted = table.assign(risen=50)
        assert companion.against_other_layers(shifted)["p"] == 1.0

    def test_with_foreign_eigenspaces_it_rejects_at_its_nominal_rate(self, readers):
        model = readers["bert"]
        d = model.layers[0].d_model
        p = []
        for seed in range(60):
            lines = [torch.outer(v, v) for v in companion.twin(torch.eye(d).double(), seed)[: len(model.layers)]]
            table = trace(model, TEXTS, targets=("own", "other"), matrices=lines)
            p.append(companion.against_other_layers(table, permutations=999)["p"])
        # Three layers have six orders, so that p is 1/6 at the least: the rate is looked at there.
        rejected = sum(value < 0.25 for value in p)
        low, high = companion.share(rejected, len(p))[1:]
        assert low <= 1 / 6 <= high

    def test_shared_layers_are_refused(self, folder):  # noqa: F811
        model = random_model("albert", tokenizer=companion.load(str(folder)).tokenizer)
        with pytest.raises(companion.CompanionError, match="share"):
            companion.against_other_layers(trace(model, TEXTS))


class TestHolm:
    def test_an_example_by_hand(self):
        np.testing.assert_allclose(companion.holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
    def test_it_lies_between_the_raw_value_and_bonferroni_and_keeps_the_order(self, p):
        p = np.array(p)
        adjusted = companion.holm(p)
        assert (adjusted >= p).all()
        assert (adjusted <= np.minimum(1, len(p) * p) + 1e-12).all()
        assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()
