"""Model cards: what each folder of the zoo says to a person who opens it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["readme", "write"]


def write(folder: Path, name: str, card: dict[str, Any]) -> None:
    """Put a card into a model's folder, for programs and for people (``card.json``, ``README.md``), each file whole."""
    for file, content in (("card.json", json.dumps(card, indent=1) + "\n"), ("README.md", readme(name, card))):
        temporary = folder / f"{file}.tmp"
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(folder / file)


def readme(name: str, card: dict[str, Any]) -> str:
    """Return the card of one model as Markdown with the header that model hubs read."""
    books = "\n".join(f"| {entry['file']} | `{entry['sha256']}` |" for entry in card["data"])
    points = ", ".join(f"{step:,}: {loss:.2f}" for step, loss in card["curve"][:: max(1, len(card["curve"]) // 10)])
    return f"""---
language: en
license: mit
library_name: transformers
---

# {name}

A small {card["kind"]} network of the zoo of *Analogies between Transformer Layers and Power Method: a
reproducible companion*. It was trained to show how the form of a layer changes what tokens do inside, and for
nothing else.

- **Size**: width {card["width"]}, {card["layers"]} layers, {card["heads"]} heads, {card["positions"]} positions,
  {card["parameters"]:,} parameters, kept in half precision.
- **Objective**: {card["objective"]}.
- **Training**: step {card["step"]:,} of {card["steps"]:,}, {card["batch"]} windows of {card["positions"]} tokens a step
  ({card["tokens_seen"]:,} tokens in all, from a corpus of {card["corpus_tokens"]:,}), AdamW, peak learning rate
  {card["learning_rate"]:g}{_restart(card)}, seed {card["seed"]}, {card["minutes"]:g} minutes.
- **Loss while training** (nats, by step): {points}.
{_held_out(card)}
- **Licence**: MIT, as the code. The training text is in the public domain in the United States.

**Not for use.** It knows seven novels of the nineteenth and early twentieth century and repeats their words and
their prejudices. Its text is not true, not safe and not good. Use it to study layers, not to write, to answer or to
decide anything.

| training text | SHA-256 |
| --- | --- |
{books}
"""


def _restart(card: dict[str, Any]) -> str:
    if "restart" not in card:
        return ""
    step, rate = card["restart"]
    return f" (from step {step:,} again, up to {rate:g})"


def _held_out(card: dict[str, Any]) -> str:
    figures = card.get("held_out")
    if figures is None:
        return "- **Held-out figures**: not measured."
    return (
        f"- **Held-out figures** ({figures['text']}, which it never saw): {figures['value']:.3f} {figures['unit']}\n"
        f"  (95 % interval {figures['low']:.3f} to {figures['high']:.3f}); the {figures['baseline']}\n"
        f"  over the same tokens {figures['baseline_value']:.3f}."
    )
