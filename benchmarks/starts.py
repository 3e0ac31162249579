"""`companion.orbit` on many starts at once against a loop over starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import companion
from companion.examples import layer_with, matrix_with

STARTS, LAYERS, TOKENS = 10_000, 200, 4


def measure(repeats: int) -> Iterator[dict[str, Any]]:
    """Yield one row a dimension: 10,000 starts of four tokens through 200 layers, batched and one by one.

    The loop is timed on 20 starts and scaled up; its starts all cost the same. Chunks of 1,000 starts keep the
    batched orbit, which holds every state, under a few gigabytes.
    """
    for d in (8, 64):
        layer = layer_with(matrix_with([1.2], d, bulk=0.6))
        x = torch.randn(STARTS, TOKENS, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        layers = [layer] * LAYERS
        batched, loop = [], []
        for _ in range(repeats):
            start = time.perf_counter()
            ends = torch.cat([companion.orbit(chunk, layers)[-1] for chunk in x.split(1000)])
            middle = time.perf_counter()
            single = torch.stack([companion.orbit(one, layers)[-1] for one in x[:20]])
            batched.append(middle - start)
            loop.append((time.perf_counter() - middle) * STARTS / 20)
        yield {
            "d": d,
            "seconds_batched": float(np.median(batched)),
            "seconds_loop": float(np.median(loop)),
            "times_as_fast": float(np.median(np.array(loop) / np.array(batched))),
            "largest_difference": float((ends[:20] - single).abs().max()),
            "repeats": repeats,
        }
