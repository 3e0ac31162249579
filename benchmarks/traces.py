"""`companion.trace` by text against the bare forward pass: a GPT-2-sized random checkpoint, and MiniLM."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

import companion
from benchmarks.memory import peak_bytes
from companion import hooks, tracing
from companion.tracing import Target

WORDS, LENGTH, BATCH = 1000, 256, 8


def model(words: int = WORDS, **sizes: int) -> companion.Model:
    """Return a GPT-2 (12 layers of d = 768, but for ``sizes``) with random weights that reads one word a token."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=words, bos_token_id=0, eos_token_id=0, **sizes)
    vocabulary = {f"w{i}": i for i in range(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=config.n_positions)
    return companion.from_network(transformers.GPT2LMHeadModel(config), reader, "random GPT-2")


def texts(count: int) -> list[str]:
    """Return texts of exactly 256 tokens."""
    rng = np.random.default_rng(0)
    return [" ".join(f"w{i}" for i in rng.integers(0, WORDS, LENGTH)) for _ in range(count)]


def bare(of: companion.Model, count: int) -> None:
    """Run the network alone on that many texts, in batches as a trace forms them."""
    ids = torch.tensor([of.windows(text)[0] for text in texts(count)])
    with torch.no_grad():
        for batch in ids.split(BATCH):
            of.network.base_model(input_ids=batch)


TARGETS: dict[str, list[Target]] = {"own": ["own"], "all": ["own", "random", "other"]}


def measure(repeats: int) -> list[dict[str, Any]]:
    """Return one row a network and choice of targets: one batch traced over the same batch bare; then the memory.

    The batch is run bare and traced (the loop body of a trace), now the one first and now the other, and the ratio is
    taken pair by pair.
    The time that passes inside the hooks, over that of the rest, is the same figure with less noise. What a
    trace does once (spectra, table) is reported on its own.
    """
    rows = []
    for name, of in (("GPT-2 small", model()), ("MiniLM", companion.load("minilm"))):
        ids = np.random.default_rng(0).integers(0, WORDS, (BATCH, LENGTH)).tolist()
        windows = [tracing.Window(i, some, i) for i, some in enumerate(ids)]
        for chosen, targets in TARGETS.items():
            _pair(of, windows, targets, False)  # warms up
            pairs, inside = zip(*(_pair(of, windows, targets, i % 2 == 1) for i in range(2 * repeats)), strict=True)
            rows.append(
                {
                    "network": name,
                    "targets": chosen,
                    "ratio_to_bare_forward": float(np.median([traced / plain for plain, traced in pairs])),
                    "ratio_by_time_inside_hooks": float(np.median(inside)),
                    "seconds_bare_batch": float(np.median([plain for plain, _ in pairs])),
                    "pairs": len(pairs),
                }
            )
    return rows + _once(max(1, repeats // 3))


def _once(repeats: int) -> list[dict[str, Any]]:
    """Measure what a trace of the GPT-2-sized network costs once, in time and in memory beside the bare network's."""
    of = model()
    peaks = {count: _peak("bare", count, repeats) for count in (BATCH, 6 * BATCH)}
    rows = []
    for chosen, targets in TARGETS.items():
        start = time.perf_counter()
        companion.trace(of, texts(1), targets=targets)
        once = time.perf_counter() - start
        memory = {count: _peak(chosen, count, repeats) - peak for count, peak in peaks.items()}
        added = {f"added_megabytes_{count}_texts": value for count, value in memory.items()}
        rows.append({"network": "GPT-2 small", "targets": chosen, "seconds_of_a_trace_of_one_text": once, **added})
    return rows


def _pair(
    of: companion.Model, windows: list[tracing.Window], targets: list[Target], traced_first: bool
) -> tuple[tuple[float, float], float]:
    """Seconds of one batch bare and traced, and the latter's ratio by the time that passes inside the hooks."""
    base = of.network.base_model
    ids = torch.tensor([window.ids for window in windows])
    reducer = tracing.Reducer(of, "residual", targets, seed=0, tokens=False)
    inside = 0.0

    def see(layer: int, stage: str, x: torch.Tensor) -> None:
        nonlocal inside
        start = time.perf_counter()
        reducer.see(layer, stage, x)
        inside += time.perf_counter() - start

    def bare_batch() -> float:
        start = time.perf_counter()
        base(input_ids=ids)
        return time.perf_counter() - start

    def traced_batch() -> float:
        start = time.perf_counter()
        with hooks.watch(base, of.sites, reducer.stages, see):
            reducer.start(windows, torch.ones_like(ids, dtype=torch.bool))
            base(input_ids=ids)
            reducer.finish()
        return time.perf_counter() - start

    with torch.no_grad():
        if traced_first:
            traced, plain = traced_batch(), bare_batch()
        else:
            plain, traced = bare_batch(), traced_batch()
    return (plain, traced), traced / (traced - inside)


def _peak(what: str, count: int, repeats: int) -> float:
    """Median peak memory (MB) of processes that trace that many texts, or only run the network on them.

    All have warmed up LAPACK, whose buffers stay. Glibc is told to give every larger block its own mapping;
    else its arenas move the peak by a hundred megabytes from run to run.
    """
    exact = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.traces", what, str(count)]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **exact})
        for _ in range(repeats)
    ]
    return float(np.median([float(run.stdout) for run in runs]))


if __name__ == "__main__":
    wanted, number = sys.argv[1], int(sys.argv[2])
    subject = model()
    companion.spectrum(np.random.default_rng(0).standard_normal((768, 768)))
    if wanted == "bare":
        bare(subject, number)
    else:
        companion.trace(subject, texts(number), targets=TARGETS[wanted], batch_size=BATCH)
    print(peak_bytes() / 2**20)
