"""From a finished run to what the package carries: half-precision weights, configuration, card, checksum."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from companion.sources import sha256
from training import cards
from training.corpus import Corpus, TrainingError
from training.loop import MASKED_SHARE, SNAPSHOTS, snapshot
from training.recipes import POSITIONS, RECIPES, Recipe

__all__ = ["ship"]

_CURVE = 60  # points of the loss curve that a card keeps


def ship(corpus: Corpus, tokens: int, tokenizer: Any, runs: Path, zoo: Path, names: list[str]) -> None:
    """Write the named models into the package's zoo, all checked before the first is written.

    Raises
    ------
    TrainingError
        If one of them is not trained to its end.
    """
    for name in names:
        if not snapshot(runs / name, "final").is_file():
            raise TrainingError(f"{name} is not trained to its end; run `python -m training train` first")
    _replace(zoo / "tokenizer", tokenizer.save_pretrained)
    data = [{"file": name, "sha256": digest} for name, digest in corpus.sha256.items()]
    for name in names:
        recipe = RECIPES[name]
        labels = ["final", *(SNAPSHOTS if recipe.snapshots else [])]
        card = _card(recipe, runs / name, data, tokens)
        for label in labels:
            folder = zoo / (name if label == "final" else f"{name}@{label}")
            _replace(folder, lambda target, r=recipe, n=name, at=label, c=card: _write(r, runs / n, at, c, target))
    sums = {path: sha256(path) for path in sorted(zoo.glob("*/model.safetensors"))}
    lines = [f"{digest}  {path.relative_to(zoo).as_posix()}\n" for path, digest in sums.items()]
    temporary = zoo / "SHA256SUMS.tmp"
    temporary.write_text("".join(lines))
    temporary.replace(zoo / "SHA256SUMS")


def _write(recipe: Recipe, run: Path, label: str, card: dict[str, Any], folder: Path) -> None:
    network = recipe.network()
    network.load_state_dict(torch.load(snapshot(run, label), weights_only=True, map_location="cpu"))
    network.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # says nothing that config.json does not
    (folder / "model.safetensors").chmod(0o644)  # safetensors keeps it for its owner alone
    step = recipe.steps if label == "final" else round(SNAPSHOTS[label] * recipe.steps)
    cards.write(folder, f"zoo/{folder.stem}", {**card, "step": step})


def _card(recipe: Recipe, run: Path, data: list[dict[str, str]], tokens: int) -> dict[str, Any]:
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    size = max(1, len(log) // _CURVE)
    groups = [log[i : i + size] for i in range(0, len(log) - size + 1, size)]
    curve = [[group[-1]["step"] + 1, round(sum(line["loss"] for line in group) / len(group), 3)] for group in groups]
    states = sorted(run.glob("state-*.pt"))
    seconds = torch.load(states[-1], weights_only=True, map_location="cpu")["seconds"]
    return {
        "kind": recipe.kind,
        "objective": f"masked tokens, {MASKED_SHARE:.0%} of each window" if recipe.masked else "next token",
        "width": recipe.width,
        "layers": recipe.layers,
        "heads": recipe.heads,
        "positions": POSITIONS,
        "parameters": sum(p.numel() for p in recipe.network().parameters()),
        "seed": recipe.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "learning_rate": recipe.learning_rate,
        **({"restart": [round(recipe.free * recipe.steps), recipe.restart]} if recipe.restart else {}),
        "tokens_seen": recipe.steps * recipe.batch * POSITIONS,
        "corpus_tokens": tokens,
        "minutes": round(seconds / 60, 1),
        "data": data,
        "curve": curve,
    }


def _replace(folder: Path, write: Any) -> None:
    """Let ``write`` fill a folder, and put it in place of the old one once it is whole."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    temporary.replace(folder)
