"""What a chapter finds about a claim, in a form that the page *Results at a glance* collects."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any, Literal

from companion.errors import CompanionError

__all__ = ["MIME", "Finding", "findings", "in_words"]

MIME = "application/vnd.companion.findings+json"
Word = Literal["holds", "holds weakly", "fails", "not run here"]
_INTERVAL = "95 % interval"
_WORDS = ("holds", "holds weakly", "fails", "not run here")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One claim on one model.

    Attributes
    ----------
    claim : str
        C1 to C12.
    model : str
        Its name, or what else the claim was tested on.
    verdict : {"holds", "holds weakly", "fails", "not run here"}
        What the numbers say.
    effect : str
        Which quantity, in words with its unit.
    value, low, high : float or None
        The quantity and its interval.
    null : str
        What it is compared with.
    figure : str
        Name of the figure that shows it.
    spread : str
        What ``low`` and ``high`` are, where they are not a 95 % interval.
    """

    claim: str
    model: str
    verdict: Word
    effect: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    null: str = ""
    figure: str = ""
    spread: str = _INTERVAL

    def __post_init__(self) -> None:
        if self.verdict not in _WORDS:
            raise CompanionError(f"verdict={self.verdict!r} is unknown; use one of {', '.join(_WORDS)}")
        numbers = (self.value, self.low, self.high)
        if self.verdict != "not run here" and (None in numbers or not self.null):
            raise CompanionError(f"{self.claim} on {self.model}: a finding needs a value, an interval and a null")


def in_words(low: float | None, high: float | None, spread: str) -> str:
    """Return a range, and what it is where that is not a 95 % interval; "" where there is none."""
    if low is None or high is None or low != low:  # a table's way to say None is NaN
        return ""
    return f"{low:.3g} to {high:.3g}" + ("" if spread == _INTERVAL else f" ({spread})")


@dataclasses.dataclass(frozen=True)
class findings:  # reads as the call that it is in a notebook
    """Findings of one chapter; a notebook shows them as a table."""

    rows: Sequence[Finding]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        entries = [dataclasses.asdict(row) for row in self.rows]
        head = ("claim", "model", "verdict", "effect", "value", "95 % interval, or as said", "compared with")
        lines = []
        for row in self.rows:
            number = "" if row.value is None else f"{row.value:.3g}"
            cells = (
                row.claim,
                row.model,
                row.verdict,
                row.effect,
                number,
                in_words(row.low, row.high, row.spread),
                row.null,
            )
            lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
        header = "".join(f"<th>{name}</th>" for name in head)
        table = (
            f'<table class="table dataframe"><thead><tr>{header}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
        )
        return {MIME: entries, "text/html": table, "text/plain": "\n".join(map(str, self.rows))}
