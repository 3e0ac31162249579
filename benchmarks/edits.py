"""`companion.steered`: a steered forward pass against an unsteered one, and what entering and leaving costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import companion
from benchmarks import traces

D = 4096


def measure(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield a row for the forward pass (GPT-2-sized), and one for the edit of a layer with d = 4096."""
    of = traces.model()
    ids = torch.tensor([of.windows(text)[0] for text in traces.texts(traces.BATCH)])
    base = of.network.base_model
    d = torch.randn(768, generator=torch.Generator().manual_seed(0))

    def forward() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            base(input_ids=ids)
        return time.perf_counter() - start

    forward()
    pairs = []
    for turn in range(8 * repeats):
        # Each of the two comes first in every second pair: caches and clocks favour neither.
        first = forward() if turn % 2 else 0.0
        with companion.steered(of, d, 10.0):
            steered = forward()
        pairs.append((first or forward(), steered))
    yield {
        "what": "forward pass, steered over unsteered",
        "ratio": float(np.median([steered / plain for plain, steered in pairs])),
        "seconds_unsteered": float(np.median([plain for plain, _ in pairs])),
        "pairs": len(pairs),
    }
    W = torch.randn(D, D, generator=torch.Generator().manual_seed(0)) / D**0.5
    layer = companion.AttentionLayer(W, W, W, W.clone(), n_heads=32)
    model: Any = SimpleNamespace(layers=[layer])
    direction, reading = torch.randn(2, D, generator=torch.Generator().manual_seed(1))
    edits, products = [], []
    for _ in range(2 * repeats):
        start = time.perf_counter()
        with companion.steered(model, direction, 10.0, reading=reading):
            pass
        middle = time.perf_counter()
        _ = W @ W
        edits.append(middle - start)
        products.append(time.perf_counter() - middle)
    yield {
        "what": f"entering and leaving, d = {D}, over one {D} x {D} matrix product (float32)",
        "ratio": float(np.median(np.array(edits) / np.array(products))),
        "seconds": float(np.median(edits)),
        "seconds_product": float(np.median(products)),
        "pairs": len(edits),
    }
