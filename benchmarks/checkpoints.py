"""`companion.spectra` on a random checkpoint of GPT-Neo 2.7B's shape: peak memory, time, and the kept results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tqdm import tqdm

import companion
from benchmarks.memory import peak_bytes

D, LAYERS = 2560, 32


def write(folder: Path) -> float:
    """Write the checkpoint in half precision, a shard a layer, without ever holding it whole; return its size in GB."""
    config = transformers.GPTNeoConfig(architectures=["GPTNeoForCausalLM"])  # its defaults are the 1.3B model's
    config.hidden_size, config.num_layers, config.num_heads = D, LAYERS, 20
    config.attention_types = [[["global", "local"], LAYERS // 2]]
    config.attention_layers = ["global", "local"] * (LAYERS // 2)
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        f"attn.attention.{name}_proj.weight": (D, D) for name in ("q", "k", "v", "out")
    }
    shapes |= {"attn.attention.out_proj.bias": (D,), "ln_1.weight": (D,), "ln_1.bias": (D,)}
    shapes |= {"ln_2.weight": (D,), "ln_2.bias": (D,)}
    shapes |= {"mlp.c_fc.weight": (4 * D, D), "mlp.c_fc.bias": (4 * D,)}
    shapes |= {"mlp.c_proj.weight": (D, 4 * D), "mlp.c_proj.bias": (D,)}
    where: dict[str, str] = {}
    for index in tqdm(range(LAYERS), "writing a checkpoint", unit=" layers"):
        tensors = {name: torch.randn(shape, generator=generator) / D**0.5 for name, shape in shapes.items()}
        # Two directions stand out of the noise, as in trained layers; a random matrix has no gap to speak of.
        out, value = (tensors[f"attn.attention.{name}_proj.weight"] for name in ("out", "v"))
        first, second = torch.randn(2, D, generator=generator) / D**0.5
        out.mul_(0.3).addr_(first, first, alpha=1.5).addr_(second, second, alpha=1.0)
        value.mul_(0.05).diagonal().add_(1.0)
        shard = {f"transformer.h.{index}.{name}": tensor.half() for name, tensor in tensors.items()}
        file = f"model-{index + 1:05d}-of-{LAYERS:05d}.safetensors"
        save_file(shard, folder / file)
        where |= dict.fromkeys(shard, file)
    index_file = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file), encoding="utf-8")
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e9


def measure(_repeats: int) -> Iterator[dict[str, Any]]:
    """Yield one row: a process of its own computes all spectra once, and another finds them kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoint"
        folder.mkdir()
        size = write(folder)
        first, again = (_run(folder, Path(name) / "kept") for _ in range(2))
    yield {
        "shape": f"{LAYERS} layers, d = {D}",
        "gigabytes_on_disk": size,
        "peak_gigabytes": first["peak_gigabytes"],
        "peak_gigabytes_of_the_imports": first["imports_gigabytes"],
        "seconds": first["seconds"],
        "seconds_when_kept": again["seconds"],
        "times_as_fast_when_kept": first["seconds"] / again["seconds"],
        "rows": first["rows"],
    }


def _run(folder: Path, cache: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.checkpoints", str(folder)]
    environment = {**os.environ, "COMPANION_CACHE": str(cache)}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


if __name__ == "__main__":
    imports = peak_bytes()
    start = time.perf_counter()
    table = companion.spectra(sys.argv[1])
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "seconds": seconds,
                "rows": len(table),
                "peak_gigabytes": peak_bytes() / 1e9,
                "imports_gigabytes": imports / 1e9,
            }
        )
    )
