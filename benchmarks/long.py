"""`companion.trace` over an iterator of a million tokens: peak memory at a tenth and at all of it, and padding."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import companion
from benchmarks import traces
from benchmarks.memory import peak_bytes
from companion import tracing
from companion.reducer import Window

WORDS, TOKENS, BATCH = 200, 1_000_000, 16


def model() -> companion.Model:
    """Return two layers of d = 64 with random weights."""
    return traces.model(WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=256)


def texts(tokens: int) -> Iterator[str]:
    """Yield texts of 20 to 250 tokens, made as they are asked for, until there are so many tokens."""
    rng = np.random.default_rng(0)
    while tokens > 0:
        length = int(rng.integers(20, 251))
        tokens -= length
        yield " ".join(f"w{i}" for i in rng.integers(0, WORDS, length))


def padding(tokens: int) -> float:
    """Return the share of padding in the batches that a trace forms from these texts."""
    of = model()
    windows = (Window(text, ids, place) for place, (text, ids) in enumerate(of.encoded(texts(tokens))))
    real = filled = 0
    for batch in tracing._batches(windows, BATCH):
        lengths = [len(window.ids) for window in batch]
        real += sum(lengths)
        filled += max(lengths) * len(lengths)
    return 1 - real / filled


def measure(_repeats: int) -> Iterator[dict[str, Any]]:
    """Yield one row a length, each in a process of its own, and the share of padding."""
    for tokens in (TOKENS // 10, TOKENS):
        command = [sys.executable, "-m", "benchmarks.long", str(tokens)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        yield {"tokens": tokens, **json.loads(run.stdout), "padding_share": padding(TOKENS // 10)}


if __name__ == "__main__":
    start = time.perf_counter()
    table = companion.trace(model(), texts(int(sys.argv[1])), batch_size=BATCH)
    print(
        json.dumps(
            {"seconds": time.perf_counter() - start, "peak_megabytes": peak_bytes() / 2**20, "table_rows": len(table)}
        )
    )
