"""How alike the tokens of one text are, layer by layer: what consensus means in a real network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from companion import hooks
from companion.dynamics import consensus
from companion.errors import TextError

__all__ = ["similarity"]


def similarity(model: Any, texts: Iterable[str], progress: bool = False) -> pd.DataFrame:
    """Return the mean cosine between different tokens of a window, at every layer.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        Read lazily; a text longer than the model's positions is cut into windows, which count by their tokens.
    progress : bool
        Whether to show a bar that counts texts.

    Returns
    -------
    DataFrame
        One row a layer and text: model, layer, text, n (tokens), cosine. Layer t is the residual stream in
        front of layer t (0: the embedding); the last row of a text is the stream behind the last layer.

    Raises
    ------
    TextError
        If there is no text, one is empty, or none has two tokens.
    """
    last = len(model.sites) - 1
    rows: dict[tuple[int, int], list[float]] = {}
    if progress and not isinstance(texts, str):
        texts = tqdm(texts, desc=f"similarity {model.name}", unit=" texts")
    base = model.network.base_model
    for text, ids in model.encoded(texts):
        if len(ids) < 2:
            continue  # one token is like no other

        def see(layer: int, stage: str, x: Tensor, text: int = text, n: int = len(ids)) -> None:
            if stage == "in" or layer == last:
                value = float(consensus(x[0].double()))
                entry = rows.setdefault((layer + (stage == "out"), text), [0.0, 0.0])
                entry[0] += n * value
                entry[1] += n

        with torch.no_grad(), hooks.watch(base, model.sites, ["in", "out"], see):
            base(input_ids=torch.tensor([ids], device=model.device))
    if not rows:
        raise TextError("no text has two tokens, so there is nothing to compare")
    table = pd.DataFrame(
        [
            {"layer": layer, "text": text, "n": int(n), "cosine": total / n}
            for (layer, text), (total, n) in sorted(rows.items())
        ]
    )
    table.insert(0, "model", model.name)
    return table
