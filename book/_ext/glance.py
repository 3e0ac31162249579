"""The page *Results at a glance*: what every executed chapter found, as one table and as files to download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import runner
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from companion.verdicts import in_words

COLUMNS = ("claim", "model", "verdict", "effect", "value", "low", "high", "spread", "null", "chapter", "figure")


def collect(built: Path = runner.BUILT) -> pd.DataFrame:
    """Return the findings of all executed chapters, from their metadata, one row each, by claim and model."""
    records = runner.provenance(built)
    rows = [{**row, "chapter": record["chapter"]} for record in records for row in record["findings"]]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    number = table["claim"].str.removeprefix("C").astype(int)
    return table.assign(number=number).sort_values(["number", "model"], kind="stable").drop(columns="number")


class FindingsDirective(Directive):  # type: ignore[misc]  # docutils is not typed
    """A table of all findings, each linked to the figure that shows it."""

    def run(self) -> list[nodes.Node]:
        """Build the table from the notebooks' outputs."""
        table = collect()
        if table.empty:
            raise self.error("no executed chapter holds a finding")
        self.state.document.settings.env.note_reread()
        return [_table(table)]


def _table(table: pd.DataFrame) -> nodes.table:
    header = (
        "claim",
        "tested on",
        "verdict",
        "effect",
        "value",
        "95 % interval, or as said",
        "compared with",
        "shown in",
    )
    group = nodes.tgroup("", *[nodes.colspec(colwidth=1) for _ in header], cols=len(header))

    def line(cells: list[nodes.Node]) -> nodes.row:
        return nodes.row("", *[nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells])

    group += nodes.thead("", line([nodes.Text(name) for name in header]))
    body = nodes.tbody()
    for row in table.to_dict("records"):
        known = pd.notna(row["value"])
        address = f"notebooks/{row['chapter']}.html" + (f"#{row['figure']}" if row["figure"] else "")
        body += line(
            [
                nodes.Text(row["claim"]),
                nodes.Text(row["model"]),
                nodes.strong("", row["verdict"]),
                nodes.Text(row["effect"]),
                nodes.Text(f"{row['value']:.3g}" if known else ""),
                nodes.Text(in_words(row["low"], row["high"], row["spread"])),
                nodes.Text(row["null"]),
                nodes.reference("", row["chapter"], internal=True, refuri=address),
            ]
        )
    group += body
    return nodes.table("", group, classes=["findings"])


def ship_findings(app: Sphinx, error: Exception | None) -> None:
    """Put the table beside the pages, as CSV and as Parquet."""
    if error or app.builder.format != "html":
        return
    table, target = collect(), Path(app.outdir) / "_static"
    table.to_csv(target / "results.csv", index=False)
    table.to_parquet(target / "results.parquet", index=False)


def register(app: Sphinx) -> None:
    """Make the directive known, and write the files when the build is done."""
    directive: Any = FindingsDirective
    app.add_directive("findings", directive)
    app.connect("build-finished", ship_findings)
