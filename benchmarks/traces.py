"""`companion.trace` by text against the bare forward pass: a GPT-2-sized random checkpoint, and MiniLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import tokenizers
import torch
import transformers

import companion
from benchmarks.memory import peak_bytes
from companion import hooks
from companion.reducer import Reducer, Window
from companion.tracing import Target

# Four batches are 8192 tokens: so many wait for each other in a trace.
WORDS, LENGTH, BATCH, GROUP = 1000, 256, 8, 4


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


# How to make a network, and how many pairs one process times.
NETWORKS: dict[str, tuple[Callable[[], companion.Model], int]] = {
    "GPT-2 small": (model, 5),
    "MiniLM": (lambda: companion.load("minilm"), 16),
}


def measure(repeats: int) -> list[dict[str, Any]]:
    """Return one row a network and choice of targets: four batches traced over the same batches bare; then the memory.

    A batch is run bare and traced (the loop of a trace) in turn, and a process's ratio is the median of its pairs.
    Where memory happens to lie moves that by a few per cent from process to process, so there are several, and the
    95 % interval of their mean is that of Student's t over processes. What a trace does once (spectra, hooks, table)
    is reported on its own.
    """
    rows = []
    for name, (_, share) in NETWORKS.items():
        for chosen in TARGETS:
            processes = [np.array(_elsewhere({}, "pairs", name, chosen, str(share))) for _ in range(max(2, repeats))]
            ratios = [float(np.median(pairs[:, 1] / pairs[:, 0])) for pairs in processes]
            interval = scipy.stats.t.interval(0.95, len(ratios) - 1, np.mean(ratios), scipy.stats.sem(ratios))
            rows.append(
                {
                    "network": name,
                    "targets": chosen,
                    "ratio_to_bare_forward": float(np.mean(ratios)),
                    "interval": [float(end) for end in interval],
                    "processes": ratios,
                    "seconds_bare_batch": float(np.median(np.concatenate(processes)[:, 0])) / GROUP,
                    "pairs_a_process": share,
                }
            )
    return rows + _once(max(1, repeats // 3))


def _pairs(name: str, chosen: str, count: int) -> list[list[float]]:
    """Seconds of four batches bare and of the same traced, batch by batch in turn; that many times."""
    of = NETWORKS[name][0]()
    base = of.network.base_model
    ids = torch.tensor(np.random.default_rng(0).integers(0, WORDS, (BATCH, LENGTH)))
    windows = [Window(i, some, i) for i, some in enumerate(ids.tolist())]
    reducer = Reducer(of, "residual", TARGETS[chosen], seed=0, tokens=False)

    def run_bare() -> float:
        start = time.perf_counter()
        base(input_ids=ids)
        return time.perf_counter() - start

    def run_traced() -> float:
        with hooks.watch(base, of.sites, reducer.stages, reducer.see):
            start = time.perf_counter()
            reducer.start(windows, None)
            base(input_ids=ids)
            reducer.finish()
            return time.perf_counter() - start

    pairs = []
    with torch.no_grad():
        for _ in range(1 + count):  # the first warms up
            seconds = [0.0, 0.0]
            for batch in range(GROUP):
                for side in (0, 1) if batch % 2 else (1, 0):
                    seconds[side] += (run_bare, run_traced)[side]()
            pairs.append(seconds)
    return pairs[1:]


def _elsewhere(environment: dict[str, str], *what: str) -> Any:
    """Run a part of this module in a process of its own and return what it prints."""
    command = [sys.executable, "-m", "benchmarks.traces", *what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return json.loads(done.stdout)


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


def _peak(what: str, count: int, repeats: int) -> float:
    """Median peak memory (MB) of processes that trace that many texts, or only run the network on them.

    All have warmed up LAPACK, whose buffers stay. Glibc is told to give every larger block its own mapping;
    else its arenas move the peak by a hundred megabytes from run to run.
    """
    exact = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return float(np.median([_elsewhere(exact, what, str(count)) for _ in range(repeats)]))


def _worker(wanted: str, *arguments: str) -> Any:
    """Do one part in this process: pairs of times, or the peak memory (MB)."""
    if wanted == "pairs":
        name, chosen, count = arguments
        return _pairs(name, chosen, int(count))
    subject = model()
    companion.spectrum(np.random.default_rng(0).standard_normal((768, 768)))
    if wanted == "bare":
        bare(subject, int(arguments[0]))
    else:
        companion.trace(subject, texts(int(arguments[0])), targets=TARGETS[wanted], batch_size=BATCH)
    return peak_bytes() / 2**20


if __name__ == "__main__":
    print(json.dumps(_worker(*sys.argv[1:])))
