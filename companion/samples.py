"""Texts that a network wrote at several strengths, side by side: a table that a slider can take the place of."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from companion.errors import CompanionError

__all__ = ["Samples"]


@dataclass(frozen=True)
class Samples:
    """What a network writes after the same beginnings at several strengths; a notebook shows it as a table.

    On the book's page ``samples.js`` turns the table into a slider over the strengths; without it the table stays.

    Attributes
    ----------
    prompts : sequence of str
        Beginnings.
    written : mapping from float to sequence of str
        Strength -> one continuation for each beginning, or more than that, of which the first are shown.
    """

    prompts: Sequence[str]
    written: Mapping[float, Sequence[str]]

    def __post_init__(self) -> None:
        for strength, texts in self.written.items():
            if len(texts) < len(self.prompts):
                raise CompanionError(
                    f"strength {strength} has {len(texts)} texts for {len(self.prompts)} beginnings; give one for each"
                )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        rows, plain = [], []
        for strength, texts in self.written.items():
            passages = "".join(
                f"<p><strong>{html.escape(prompt)}</strong>{html.escape(text)}</p>"
                for prompt, text in zip(self.prompts, texts, strict=False)
            )
            rows.append(f'<tr><th scope="row">{strength:g}</th><td lang="en">{passages}</td></tr>')
            plain += [f"{strength:g}: {prompt}{text}" for prompt, text in zip(self.prompts, texts, strict=False)]
        head = '<thead><tr><th scope="col">strength α</th><th scope="col">beginning and what follows</th></tr></thead>'
        table = f'<table class="table dataframe">{head}<tbody>{"".join(rows)}</tbody></table>'
        return {"text/html": f'<div data-samples="">{table}</div>', "text/plain": "\n".join(plain)}
