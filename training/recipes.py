"""Which networks the zoo holds, and how each is trained: pairs differ in as little as stock classes allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers

from training.corpus import PAD, VOCABULARY

__all__ = ["KINDS", "MASKED_KINDS", "RECIPES", "SHIPPED", "Recipe"]

MASKED_KINDS = ("albert", "bert")
KINDS = ("albert", "bert", "causal-bert", "gpt2", "gpt-neo", "gpt-neo-global")
POSITIONS = 128
WINDOW = 32


@dataclass(frozen=True)
class Recipe:
    """One network: architecture, size, and its share of training.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    width, layers, heads : int
        Model dimension, layers, heads; the feed-forward part is twice as wide as the model.
    seed : int
        Of weights and batches: networks with one seed see the same tokens.
    steps, batch : int
        Optimiser steps, and windows in each.
    learning_rate : float
        Peak, after 200 steps of warm-up; a cosine brings it down to a twentieth.
    free : float
        Share of the steps from which a masked model's tokens look as far as they like, see
        :func:`training.loop.distance_cost`.
    restart : float, optional
        Peak of a second cosine that begins there (a warm restart, Loshchilov and Hutter 2017); one cosine without.
    snapshots : bool
        Whether states along training ship as well.
    """

    kind: str
    width: int = 128
    layers: int = 12
    heads: int = 4
    seed: int = 0
    steps: int = 4500
    batch: int = 16
    learning_rate: float = 1e-3
    free: float = 0.25
    restart: float | None = None
    snapshots: bool = False

    @property
    def masked(self) -> bool:
        """Whether it predicts masked tokens (else the next one)."""
        return self.kind in MASKED_KINDS

    def network(self) -> Any:
        """Return a stock Hugging Face network, with random weights drawn from the torch generator as it stands.

        Positions start as the sinusoids of Vaswani et al. (2017) and are trained from there: neighbours are then
        found by one rotation of queries against keys instead of a hundred separate pairs.
        """
        network = self._random()
        tables = [module for name, module in network.named_modules() if name.endswith(("position_embeddings", "wpe"))]
        angles = torch.arange(POSITIONS)[:, None] * 10_000 ** (-torch.arange(0, self.width, 2) / self.width)
        with torch.no_grad():
            tables[0].weight.copy_(self._std * 2**0.5 * torch.stack([angles.sin(), angles.cos()], -1).flatten(1))
        return network

    @property
    def _std(self) -> float:
        """Of random weights: the usual 0.02 is meant for a width of 768."""
        return 0.02 * (768 / self.width) ** 0.5

    def _random(self) -> Any:
        if self.kind in ("gpt2", "gpt-neo", "gpt-neo-global"):
            return transformers.AutoModelForCausalLM.from_config(self._decoder(), attn_implementation="eager")
        common = {
            "vocab_size": VOCABULARY,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 2 * self.width,
            "max_position_embeddings": POSITIONS,
            "hidden_act": "gelu",
            "initializer_range": self._std,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "pad_token_id": PAD,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        if self.kind == "albert":
            config: Any = transformers.AlbertConfig(embedding_size=self.width, **common)
        else:
            config = transformers.BertConfig(is_decoder=self.kind == "causal-bert", **common)
        family = transformers.AutoModelForMaskedLM if self.masked else transformers.AutoModelForCausalLM
        return family.from_config(config, attn_implementation="eager")

    def _decoder(self) -> Any:
        common = {
            "vocab_size": VOCABULARY,
            "initializer_range": self._std,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": PAD,
        }
        if self.kind == "gpt2":
            return transformers.GPT2Config(
                n_positions=POSITIONS,
                n_embd=self.width,
                n_layer=self.layers,
                n_head=self.heads,
                n_inner=2 * self.width,
                activation_function="gelu",
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                **common,
            )
        attention = ["global", "global"] if self.kind == "gpt-neo-global" else ["global", "local"]
        return transformers.GPTNeoConfig(
            max_position_embeddings=POSITIONS,
            hidden_size=self.width,
            num_layers=self.layers,
            attention_types=[[attention, self.layers // 2]],
            num_heads=self.heads,
            intermediate_size=2 * self.width,
            window_size=WINDOW,
            activation_function="gelu",
            **common,
        )


# One step of shared weights moves all layers at once: at the others' rate ALBERT never leaves word frequencies. Once
# all tokens are there it must find its way again, which takes a higher rate than it could begin with.
_RATES = {"albert": 3e-4}
_RESTARTS = {"albert": 8e-4}
_FREE = {"albert": 0.45, "bert": 0.6}

# Three tokens in ten are predicted by a masked model and all by a causal one: about as many predictions in the end.
_LONGER = 32 / 9


def _steps(kind: str, causal: int) -> int:
    return round(causal * _LONGER) if kind in MASKED_KINDS else causal


RECIPES = {
    kind: Recipe(
        kind,
        steps=_steps(kind, 4500),
        learning_rate=_RATES.get(kind, 1e-3),
        free=_FREE.get(kind, 0.25),
        restart=_RESTARTS.get(kind),
        snapshots=kind in ("albert", "gpt2"),
    )
    for kind in KINDS
} | {
    f"{kind}-small-{seed}": Recipe(
        kind, width=32, layers=6, seed=seed, steps=_steps(kind, 3000), learning_rate=_RATES.get(kind, 1e-3)
    )
    for seed in (1, 2, 3)
    for kind in KINDS
}

# What `make zoo` trains and the package carries; small networks of the other kinds can be trained by name.
SMALL = tuple(f"{kind}-small-{seed}" for kind in ("causal-bert", "gpt2") for seed in (1, 2, 3))
SHIPPED = ("albert", "bert", "gpt2", "causal-bert", "gpt-neo", "gpt-neo-global", *SMALL)
