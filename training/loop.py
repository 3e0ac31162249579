"""One network's training: plain PyTorch, a state on disk every half minute, the same batches after a resume."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from training.corpus import IGNORED, TrainingError, batch, masked
from training.recipes import POSITIONS, Recipe

__all__ = [
    "MASKED_SHARE",
    "SNAPSHOTS",
    "attention_mask",
    "distance_cost",
    "learning_rate",
    "loss_of",
    "snapshot",
    "train",
]

MASKED_SHARE = 0.3
SNAPSHOTS = {"initial": 0.0, "1-percent": 0.01, "10-percent": 0.1}
_SECONDS = 30.0  # between states on disk
_WARM_UP = 200
_NEAREST = 0.25  # share of the steps, see distance_cost
_COST = 8.0


def train(recipe: Recipe, name: str, tokens: NDArray[np.int64], folder: Path) -> None:
    """Train a network to its end, from the last state in ``folder`` where there is one.

    Raises
    ------
    TrainingError
        If the corpus is shorter than one batch, a state on disk is damaged, the loss is not finite, or a
        state cannot be written. The last good state stays.
    """
    need = recipe.batch * POSITIONS
    if len(tokens) < need:
        raise TrainingError(
            f"the corpus has {len(tokens):,} tokens, less than one batch of {need:,}; add text to the folder"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)
    network = recipe.network().to(device).train()
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    folder.mkdir(parents=True, exist_ok=True)
    first, spent = _resume(folder, name, network, optimizer)
    log = _Log(folder / "log.jsonl", first)
    saved = began = time.monotonic()
    bar = tqdm(range(first, recipe.steps), name, recipe.steps, initial=first, unit=" steps", mininterval=5)
    for step in bar:
        for label in _snapshots_at(step, recipe.steps):
            _save(snapshot(folder, label), network.state_dict())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        ids, rng = batch(tokens, recipe.batch, POSITIONS, recipe.seed, step)
        inputs, labels = masked(ids, MASKED_SHARE, rng) if recipe.masked else (ids, _shifted(ids))
        mask = attention_mask(inputs.shape, distance_cost(step / recipe.steps, recipe.free)) if recipe.masked else None
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(network, inputs.to(device), labels.to(device), None if mask is None else mask.to(device))
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(f"{name}: the loss is {value} at step {step}; lower the learning rate in recipes.py")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        log.add(step, value)
        now = time.monotonic()
        speed = (step + 1 - first) * need / (now - began)
        bar.set_postfix_str(f"loss {value:.3f}, {speed:,.0f} tokens/s", refresh=False)
        if now - saved > _SECONDS or step + 1 == recipe.steps:
            _save_state(folder, network, optimizer, step + 1, spent + now - began)
            log.flush()
            saved = now
    _save(snapshot(folder, "final"), network.state_dict())


def snapshot(folder: Path, label: str) -> Path:
    """Where a run keeps its weights at a point of training: those of :data:`SNAPSHOTS`, or "final"."""
    return folder / f"{label}.pt"


def distance_cost(share: float, free: float) -> float:
    """Return what the logits of tokens beyond the neighbours lose, when a share of a masked model's steps is done.

    A post-norm network of this depth that starts with full attention sits for hours on the frequencies of words
    when it is trained on masked tokens: the neighbours that matter are one or two among 128 that it averages. So
    it begins with them alone, for a quarter of the steps. Then the others come in, their logits raised at a constant
    rate until the share ``free``: at once, if that is a quarter as well. Either way a network loses what it has
    learned when the last of the cost goes, and finds it again within some hundred steps.
    """
    if share < _NEAREST:
        return float("inf")
    return _COST * (free - share) / (free - _NEAREST) if share < free else 0.0


def attention_mask(shape: torch.Size, cost: float) -> Tensor | None:
    """Return the mask of :func:`distance_cost`, added to the logits, shape (batch, 1, n, n); None where it is zero."""
    if cost == 0:
        return None
    batch, n = shape
    place = torch.arange(n)
    beyond = (place[None, :] - place[:, None]).abs() > 1
    # The lowest number instead of minus infinity: what Hugging Face's own masks hold.
    return torch.zeros(n, n).masked_fill(beyond, max(-cost, torch.finfo(torch.float32).min)).expand(batch, 1, n, n)


def loss_of(network: Any, inputs: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean cross-entropy in nats over the positions whose label is set; the output head sees only those."""
    kept = labels != IGNORED
    hidden = network.base_model(input_ids=inputs, attention_mask=mask)[0][kept]
    head = getattr(network, "cls", None) or getattr(network, "predictions", None) or network.lm_head
    return torch.nn.functional.cross_entropy(head(hidden).float(), labels[kept])


def _shifted(ids: Tensor) -> Tensor:
    labels = ids.roll(-1, dims=1)
    labels[:, -1] = IGNORED
    return labels


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the rate at a step: warm-up and a cosine to a twentieth, and once more from ``free`` on if it restarts."""
    free = round(recipe.free * recipe.steps)
    if recipe.restart is None or step < free:
        return recipe.learning_rate * _cosine(step, recipe.steps)
    return recipe.restart * _cosine(step - free, recipe.steps - free)


def _cosine(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / _WARM_UP)
    return warm * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)


def _snapshots_at(step: int, steps: int) -> list[str]:
    return [label for label, share in SNAPSHOTS.items() if step == round(share * steps)]


def _resume(folder: Path, name: str, network: Any, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Load the last state, if any; return its step and the seconds that were spent until then."""
    states = sorted(folder.glob("state-*.pt"))
    if not states:
        return 0, 0.0
    try:
        state = torch.load(states[-1], weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
    except Exception as error:  # zip, pickle and missing keys each have their own
        earlier = f"go on from {states[-2].name}" if len(states) > 1 else "start again"
        raise TrainingError(
            f"{name}: {states[-1]} is damaged or of another recipe ({str(error)[:200]}); delete it to {earlier}"
        ) from error
    return int(state["step"]), float(state["seconds"])


def _save_state(folder: Path, network: Any, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "seconds": seconds}
    _save(folder / f"state-{step:08d}.pt", state)
    for old in sorted(folder.glob("state-*.pt"))[:-2]:
        old.unlink()


def _save(path: Path, content: Any) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        temporary.unlink(missing_ok=True)
        raise TrainingError(f"{path} cannot be written: {error}; free some space and run the same command") from error


class _Log:
    """The loss, step by step, as lines of JSON, on disk whenever a state is."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.lines: list[str] = []
        if path.is_file():
            # Steps after the state that training goes on from are taken again.
            kept = [line for line in path.read_text().splitlines() if _step(line) < first]
            path.write_text("".join(line + "\n" for line in kept))

    def add(self, step: int, loss: float) -> None:
        self.lines.append(json.dumps({"step": step, "loss": round(loss, 4)}))

    def flush(self) -> None:
        with self.path.open("a") as stream:
            stream.writelines(line + "\n" for line in self.lines)
        self.lines = []


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return sys.maxsize  # a line that was cut by a kill
