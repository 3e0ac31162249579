"""What a chapter finds about a claim, in a form that the page *Results at a glance* collects."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any, Literal

from companion.errors import CompanionError

__all__ = ["MIME", "Finding", "findings"]

MIME = "application/vnd.companion.findings+json"
Word = Literal["holds", "holds weakly", "fails", "not run here"]
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
        The quantity and its 95 % interval.
    null : str
        What it is compared with.
    figure : str
        Name of the figure that shows it.
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

    def __post_init__(self) -> None:
        if self.verdict not in _WORDS:
            raise CompanionError(f"verdict={self.verdict!r} is unknown; use one of {', '.join(_WORDS)}")
        numbers = (self.value, self.low, self.high)
        if self.verdict != "not run here" and (None in numbers or not self.null):
            raise CompanionError(f"{self.claim} on {self.model}: a finding needs a value, an interval and a null")


@dataclasses.dataclass(frozen=True)
class findings:  # reads as the call that it is in a notebook
    """Findings of one chapter; a notebook shows them as a table."""

    rows: Sequence[Finding]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        entries = [dataclasses.asdict(row) for row in self.rows]
        head = ("claim", "model", "verdict", "effect", "value", "95 % interval", "compared with")
        lines = []
        for row in self.rows:
            missing = row.value is None or row.low is None or row.high is None
            number = "" if missing else f"{row.value:.3f}"
            interval = "" if missing else f"{row.low:.3f} to {row.high:.3f}"
            cells = (row.claim, row.model, row.verdict, row.effect, number, interval, row.null)
            lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
        header = "".join(f"<th>{name}</th>" for name in head)
        table = (
            f'<table class="table dataframe"><thead><tr>{header}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
        )
        return {MIME: entries, "text/html": table, "text/plain": "\n".join(map(str, self.rows))}
