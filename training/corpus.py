"""A folder of texts becomes a tokenizer, one long row of tokens, and batches that depend on seed and step alone."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "MASK",
    "PAD",
    "VOCABULARY",
    "Corpus",
    "TrainingError",
    "batch",
    "masked",
    "plain",
    "read",
    "train_tokenizer",
]

VOCABULARY = 2048
PAD, MASK = 0, 1
IGNORED = -100  # what cross-entropy leaves out
_TYPEWRITTEN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "_": None, "\ufeff": None})


class TrainingError(Exception):
    """Something a person has to mend before training can go on."""


@dataclass(frozen=True)
class Corpus:
    """Texts in the order of their file names.

    Attributes
    ----------
    texts : dict of str
        Text by file name, as :func:`plain` leaves it.
    sha256 : dict of str
        Checksum of each file.
    """

    texts: dict[str, str]
    sha256: dict[str, str]

    def tokens(self, tokenizer: transformers.PreTrainedTokenizerFast) -> NDArray[np.int64]:
        """All texts one after the other, as token ids."""
        rows = [tokenizer(text, verbose=False)["input_ids"] for text in self.texts.values()]
        return np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])


def read(folder: Path) -> Corpus:
    """Read every ``*.txt`` of a folder.

    Raises
    ------
    TrainingError
        If there is no such folder, no text in it, or a file is not UTF-8 text.
    """
    if not folder.is_dir():
        raise TrainingError(f"there is no folder {folder}; give one with plain UTF-8 texts, *.txt")
    texts, checksums = {}, {}
    for path in sorted(folder.glob("*.txt")):
        content = path.read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TrainingError(f"{path} is not UTF-8 text: {error}; convert it or take it out") from error
        if "\0" in text:
            raise TrainingError(f"{path} holds zero bytes, so it is no text; take it out")
        if text.strip():
            texts[path.name], checksums[path.name] = plain(text), hashlib.sha256(content).hexdigest()
    if not texts:
        raise TrainingError(f"{folder} holds no text: no *.txt with anything in it")
    return Corpus(texts, checksums)


def plain(text: str) -> str:
    """Return a text with one line a paragraph and with the quotation marks that people type; no ``_emphasis_``.

    What a line's end and a printer's mark cost would otherwise be part of every loss.
    """
    paragraphs = re.split(r"\n\s*\n", text.translate(_TYPEWRITTEN))
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def train_tokenizer(corpus: Corpus, positions: int) -> transformers.PreTrainedTokenizerFast:
    """Train the zoo's byte-level BPE tokenizer; it adds no special tokens of its own to a text."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus.texts.values(), trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", mask_token="<mask>", model_max_length=positions
    )


def batch(
    tokens: NDArray[np.int64], size: int, length: int, seed: int, step: int
) -> tuple[Tensor, np.random.Generator]:
    """Draw the batch of one step, shape (size, length), and the generator that goes on from there.

    Models with the same seed see the same tokens in the same order, and a resumed run those that it missed.
    """
    rng = np.random.default_rng([seed, step])
    starts = rng.integers(0, len(tokens) - length + 1, size=size)
    return torch.from_numpy(tokens[starts[:, None] + np.arange(length)]), rng


def masked(ids: Tensor, share: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Hide a share of the tokens behind ``<mask>``; return inputs, and labels that are set only there."""
    hidden = torch.from_numpy(rng.random(ids.shape) < share)
    return ids.masked_fill(hidden, MASK), ids.masked_fill(~hidden, IGNORED)
