"""Every layer of a model at a glance: its whole spectrum and its alignment, for a slider over the layers."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any

import pandas as pd

from companion.errors import CompanionError

__all__ = ["Explorer"]

_SPECTRA = ("model", "layer", "real", "imag")
_LAYERS = ("model", "layer", "real", "imag", "growth", "gap", "gamma", "gamma_low", "gamma_high", "chance", "rho")


@dataclass(frozen=True)
class Explorer:
    r"""Spectra and alignment of every layer; a notebook shows them as a table of the leading eigenvalues.

    On the book's page ``layers.js`` puts a slider over the layers in front of the table; without it the table stays.

    Attributes
    ----------
    spectra : DataFrame
        Every eigenvalue of every layer matrix: model, layer, real, imag.
    layers : DataFrame
        One row a layer: model, layer; real, imag, growth (:math:`|1 + \lambda|`) and gap of the leading
        eigenvalue; gamma with gamma_low and gamma_high, chance (what a random subspace gets), rho.
    """

    spectra: pd.DataFrame
    layers: pd.DataFrame

    def __post_init__(self) -> None:
        for name, table, columns in (("spectra", self.spectra, _SPECTRA), ("layers", self.layers, _LAYERS)):
            if missing := [column for column in columns if column not in table]:
                raise CompanionError(f"the table {name} lacks the columns {', '.join(missing)}")
        wanted, there = (set(zip(t["model"], t["layer"], strict=True)) for t in (self.layers, self.spectra))
        if wanted != there or not wanted:
            odd = sorted(wanted ^ there)[:1]
            raise CompanionError(f"the tables must speak of the same layers; only one of them has {odd or 'any'}")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        models = [
            {"name": name, "layers": [self._one(row) for row in rows.to_dict("records")]}
            for name, rows in self.layers.sort_values("layer").groupby("model", sort=False)
        ]
        # "</" would end the script; in JSON a slash may be escaped.
        content = json.dumps(models, separators=(",", ":")).replace("</", "<\\/")
        head = ("model", "layer", "leading λ", "|1 + λ|", "gap", "γ", "γ by chance", "ρ")
        lines = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in self._cells(row)) + "</tr>"
            for row in self.layers.to_dict("records")
        )
        table = (
            '<table class="table dataframe"><thead><tr>'
            + "".join(f'<th scope="col">{name}</th>' for name in head)
            + f"</tr></thead><tbody>{lines}</tbody></table>"
        )
        shown = f'<div data-layers=""><script type="application/json">{content}</script>{table}</div>'
        return {"text/html": shown, "text/plain": self.layers.to_string(index=False)}

    def _one(self, row: dict[Any, Any]) -> dict[str, Any]:
        """One layer, rounded to what a picture shows; eigenvalues as real, imaginary, real, imaginary and so on."""
        own = (self.spectra["model"] == row["model"]) & (self.spectra["layer"] == row["layer"])
        # A real matrix: conjugates are drawn from one of the two.
        upper = self.spectra[own & (self.spectra["imag"] >= 0)]
        numbers = {name: round(float(row[name]), 4) for name in _LAYERS[2:]}
        return {
            "layer": int(row["layer"]),
            **numbers,
            "all": upper[["real", "imag"]].round(3).to_numpy().ravel().tolist(),
        }

    @staticmethod
    def _cells(row: dict[Any, Any]) -> list[str]:
        imaginary = f" ± {abs(row['imag']):.2f}i" if row["imag"] else ""
        numbers = [f"{row[name]:.2f}" for name in ("growth", "gap", "gamma", "chance", "rho")]
        return [str(row["model"]), str(row["layer"]), f"{row['real']:.2f}{imaginary}", *numbers]
