"""Figures: seaborn under one theme, colour-blind-safe, each with a sentence for those who cannot see it.

Every function takes a table and returns a :class:`Picture`, which notebooks show as SVG with alt text.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from companion.errors import CompanionError

__all__ = [
    "Picture",
    "eigenvalues",
    "intervals",
    "layers_against_layers",
    "lines",
    "paths",
    "points",
    "spectra",
    "spheres",
    "tilts",
]

_THEME: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "figure.figsize": (6.4, 3.6),
    "font.size": 10.0,
    "legend.frameon": False,
    "svg.hashsalt": "companion",  # the same table gives the same file
}
_COLOURS = sns.color_palette("colorblind")
_STYLES: list[Any] = ["-", "--", ":", "-.", (0, (6, 1.5)), (0, (2, 2))]
_MARKERS = ["o", "s", "D", "^", "v", "P"]
_NULL = "0.45"


@dataclass(frozen=True)
class Picture:
    """A figure with the sentence that says what is to be seen, and the table that it shows.

    Attributes
    ----------
    figure : Figure
        Matplotlib's figure.
    alt : str
        Alternative text, computed from the table.
    data : DataFrame
        The table.
    """

    figure: Figure
    alt: str
    data: pd.DataFrame

    def svg(self) -> str:
        """Return the picture as SVG."""
        buffer = io.StringIO()
        with mpl.rc_context(_THEME):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
        return buffer.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the picture as SVG, PNG or PDF, by the ending of ``path``."""
        self.figure.savefig(path, bbox_inches="tight", dpi=200)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        shown = {
            "image/svg+xml": self.svg(),
            "text/plain": self.alt,
            "text/csv": self.data.to_csv(index=False, float_format="%.6g"),
        }
        return shown, {"image/svg+xml": {"alt": self.alt}}


def lines(
    table: pd.DataFrame,
    x: str,
    y: str,
    hue: str,
    labels: tuple[str, str],
    band: tuple[str, str] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    ylim: tuple[float, float] | None = None,
    level: tuple[float, str] | None = None,
) -> Picture:
    """Draw one line for each value of ``hue``, told apart by colour, dash and marker.

    Parameters
    ----------
    table : DataFrame
        Long table.
    x, y, hue : str
        Columns.
    labels : (str, str)
        Axis labels, with units.
    band : (str, str) or None
        Columns with the lower and upper end of an interval.
    log_x, log_y : bool
        Logarithmic axes; ``log_x`` is linear below the smallest positive value, so that zero is shown.
    ylim : (float, float) or None
        Range of the y axis.
    level : (float, str) or None
        A horizontal reference line and its name.
    """
    _require(table, [x, y, hue, *(band or ())])
    names = list(dict.fromkeys(table[hue].astype(str)))
    with mpl.rc_context(_THEME):
        figure, axes = _canvas()
        for i, name in enumerate(names):
            rows = table[table[hue].astype(str) == name].sort_values(x)
            style: Any = {"color": _COLOURS[i % 10], "ls": _STYLES[i % 6], "marker": _MARKERS[i % 6]}
            spacing = max(1, len(rows) // 12)
            axes.plot(rows[x], rows[y], label=name, markersize=4, markevery=spacing, **style)
            if band:
                axes.fill_between(rows[x], rows[band[0]], rows[band[1]], color=style["color"], alpha=0.18, lw=0)
        if level:
            axes.axhline(level[0], color=_NULL, lw=1, ls=":", label=level[1])
        if log_x:
            smallest = float(table.loc[table[x] > 0, x].min())
            axes.set_xscale("symlog", linthresh=smallest, linscale=0.4)
            # Powers of ten within the linear part would stand on top of the zero.
            decades = 10.0 ** np.arange(np.ceil(np.log10(smallest)), np.floor(np.log10(table[x].max())) + 1)
            axes.set_xticks([0.0, *decades] if (table[x] == 0).any() else decades)
        if log_y:
            axes.set_yscale("log")
        if ylim:
            axes.set_ylim(*ylim)
        _finish(axes, labels)
    return Picture(figure, _say_lines(table, x, y, hue, names, labels), table)


def intervals(table: pd.DataFrame, y: str, hue: str, label: str, level: tuple[float, str] | None = None) -> Picture:
    """Draw means with their intervals, one row for each value of ``y`` and a colour and marker for each of ``hue``.

    Parameters
    ----------
    table : DataFrame
        Columns mean, low, high and the two named ones.
    y, hue : str
        Columns.
    label : str
        Label of the value axis, with its unit.
    level : (float, str) or None
        A vertical reference line and its name.
    """
    _require(table, [y, hue, "mean", "low", "high"])
    rows, names = (list(dict.fromkeys(table[column].astype(str))) for column in (y, hue))
    step = 0.7 / len(names)
    with mpl.rc_context(_THEME):
        figure, axes = _canvas((6.4, 1.2 + 0.3 * len(rows) * max(1.0, len(names) / 2.5)))
        for i, name in enumerate(names):
            part = table[table[hue].astype(str) == name]
            at = np.array([rows.index(value) for value in part[y].astype(str)]) + step * (i - (len(names) - 1) / 2)
            spread = part[["low", "high"]].sub(part["mean"], axis=0).abs().to_numpy().T
            style: Any = {"color": _COLOURS[i % 10], "fmt": _MARKERS[i % 6], "markersize": 5, "capsize": 2}
            axes.errorbar(part["mean"], at, xerr=spread, label=name, **style)
        if level:
            axes.axvline(level[0], color=_NULL, lw=1, ls=":", label=level[1])
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        _finish(axes, (label, y))
    said = "; ".join(
        f"{row[y]}, {row[hue]}: {row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        for _, row in table.iterrows()
    )
    return Picture(figure, f"{label} with 95 % intervals. {said}.", table)


def points(
    table: pd.DataFrame, x: str, y: str, hue: str, labels: tuple[str, str], level: tuple[float, str] | None = None
) -> Picture:
    """Draw one point a row, told apart by colour and marker.

    Parameters
    ----------
    table : DataFrame
        Long table.
    x, y, hue : str
        Columns.
    labels : (str, str)
        Axis labels, with units.
    level : (float, str) or None
        A horizontal reference line and its name.
    """
    _require(table, [x, y, hue])
    names = list(dict.fromkeys(table[hue].astype(str)))
    said = []
    with mpl.rc_context(_THEME):
        figure, axes = _canvas()
        for i, name in enumerate(names):
            rows = table[table[hue].astype(str) == name]
            axes.scatter(
                rows[x], rows[y], color=[_COLOURS[i % 10]], marker=_MARKERS[i % 6], s=26, label=name, alpha=0.8
            )
            said.append(
                f"{name}: {len(rows)} points, {x} from {rows[x].min():.3g} to {rows[x].max():.3g}, "
                f"{y} from {rows[y].min():.3g} to {rows[y].max():.3g}"
            )
        if level:
            axes.axhline(level[0], color=_NULL, lw=1, ls=":", label=level[1])
        _finish(axes, labels)
    return Picture(figure, f"{labels[1]} against {labels[0]}. {'; '.join(said)}.", table)


def tilts(table: pd.DataFrame, quantity: str) -> Picture:
    """Draw gamma or rho by layer with its interval, beside both nulls.

    Parameters
    ----------
    table : DataFrame
        From :func:`companion.tilt`.
    quantity : {"gamma", "rho"}
        Which of the two.
    """
    _require(table, [quantity, f"{quantity}_low", f"{quantity}_high", f"{quantity}_null", f"{quantity}_other"])
    ylabel = {"gamma": "mean alignment γ after attention", "rho": "share of tokens that rise, ρ"}[quantity]
    with mpl.rc_context(_THEME):
        figure, axes = _canvas()
        spread = table[[f"{quantity}_low", f"{quantity}_high"]].sub(table[quantity], axis=0).abs().to_numpy().T
        axes.errorbar(
            table["layer"], table[quantity], spread, color=_COLOURS[0], marker="o", capsize=3, label="own eigenspace"
        )
        axes.plot(table["layer"], table[f"{quantity}_other"], "s--", color=_COLOURS[1], ms=4, label="other layers'")
        axes.plot(table["layer"], table[f"{quantity}_null"], "D:", color=_NULL, ms=4, label="random subspaces")
        if quantity == "rho":
            axes.axhline(0.5, color=_NULL, lw=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(axes, ("layer", ylabel))
    values = ", ".join(f"{v:.2f}" for v in table[quantity])
    null, other = table[f"{quantity}_null"].mean(), table[f"{quantity}_other"].mean()
    alt = (
        f"{ylabel} by layer, with 95 % intervals over texts. Own eigenspace, from the first layer: {values}. "
        f"Mean over layers for random subspaces {null:.2f}, for other layers' eigenspaces {other:.2f}."
    )
    return Picture(figure, alt, table)


def eigenvalues(table: pd.DataFrame, title: str = "") -> Picture:
    """Draw eigenvalues of F in the complex plane, with the one that leads in each order.

    Parameters
    ----------
    table : DataFrame
        Columns real, imag, and leads: "" or the names of the orders that the eigenvalue leads.
    title : str
        Shown above.
    """
    _require(table, ["real", "imag", "leads"])
    with mpl.rc_context(_THEME):
        figure, axes = _canvas((5.2, 4.4))
        rest, leading = table[table["leads"] == ""], table[table["leads"] != ""]
        axes.scatter(rest["real"], rest["imag"], s=7, color=_NULL, alpha=0.6, lw=0, label="eigenvalues of F")
        for i, (name, rows) in enumerate(leading.groupby("leads", sort=False)):
            style: Any = {"color": _COLOURS[i], "marker": _MARKERS[i], "s": 55, "edgecolor": "black", "lw": 0.5}
            axes.scatter(rows["real"], rows["imag"], label=f"leads: {name}", zorder=3, **style)
        circle = abs(1 + leading["real"] + 1j * leading["imag"]).max()
        turn = np.linspace(0, 2 * np.pi, 200)
        axes.plot(circle * np.cos(turn) - 1, circle * np.sin(turn), color=_COLOURS[0], lw=0.8, ls="--")
        axes.scatter([-1], [0], marker="+", color=_COLOURS[0], label="−1, and circle of largest |1 + λ|")
        axes.set_aspect("equal")
        axes.set_title(title)
        _finish(axes, ("Re λ", "Im λ"))
    places = "; ".join(
        f"{name}: {rows['real'].iloc[0]:.2f} {rows['imag'].abs().iloc[0]:+.2f}i"
        for name, rows in leading.groupby("leads", sort=False)
    )
    alt = f"{len(table)} eigenvalues in the complex plane. {title} Those that lead by order: {places}."
    return Picture(figure, alt, table)


def spectra(table: pd.DataFrame) -> Picture:
    """Draw eigenvalues of F in the complex plane, one small panel a layer, with the one that leads.

    Parameters
    ----------
    table : DataFrame
        Columns layer, real, imag: every eigenvalue of every layer matrix.
    """
    _require(table, ["layer", "real", "imag"])
    layers = list(dict.fromkeys(table["layer"]))
    columns = 3 if len(layers) <= 6 else 4
    rows = -(-len(layers) // columns)
    left, right = table["real"].min(), table["real"].max()
    top = max(table["imag"].max(), 0.25 * (right - left))
    pad = 0.08 * (right - left) + 1e-6
    shape = (top + pad) * 2 / (right - left + 2 * pad)
    turn = np.linspace(0, 2 * np.pi, 200)
    said = []
    with mpl.rc_context(_THEME):
        figure = Figure(figsize=(6.4, 0.6 + rows * (0.45 + 5.6 / columns * shape)), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, layer in zip(grid.flat, layers, strict=False):
            values = table.loc[table["layer"] == layer, ["real", "imag"]].to_numpy() @ [1, 1j]
            growth = abs(1 + values)
            first = values[growth >= growth.max() - 1e-9]
            axes.plot(growth.max() * np.cos(turn) - 1, growth.max() * np.sin(turn), color=_COLOURS[0], lw=0.8, ls="--")
            axes.scatter(values.real, values.imag, s=3, color=_NULL, alpha=0.6, lw=0)
            axes.scatter(first.real, first.imag, s=24, color=_COLOURS[1], marker="D", ec="black", lw=0.5, zorder=3)
            axes.set(aspect="equal", xlim=(left - pad, right + pad), ylim=(-top - pad, top + pad))
            axes.set_title(f"layer {layer}", fontsize="small")
            said.append(
                f"layer {layer}: {first[0].real:.2f}" + (f" ± {abs(first[0].imag):.2f}i" if first[0].imag else "")
            )
        for axes in grid.flat[len(layers) :]:
            axes.set_axis_off()
        figure.supxlabel("Re λ", fontsize="small")
        figure.supylabel("Im λ", fontsize="small")
    alt = f"Eigenvalues of {len(layers)} layer matrices in the complex plane. Largest |1 + λ|: {'; '.join(said)}."
    return Picture(figure, alt, table)


def paths(table: pd.DataFrame, labels: tuple[str, str]) -> Picture:
    """Draw paths in a plane, one for each value of the column path, from dot to cross.

    Parameters
    ----------
    table : DataFrame
        Columns x, y, step, path.
    labels : (str, str)
        Axis labels.
    """
    _require(table, ["x", "y", "step", "path"])
    with mpl.rc_context(_THEME):
        figure, axes = _canvas((4.6, 4.4))
        for i, (_, rows) in enumerate(table.groupby("path", sort=False)):
            rows = rows.sort_values("step")
            colour = _COLOURS[i % 10]
            axes.plot(rows["x"], rows["y"], color=colour, lw=0.9, marker=".", ms=3)
            axes.scatter(rows["x"].iloc[0], rows["y"].iloc[0], color=colour, s=28, zorder=3)
            axes.scatter(rows["x"].iloc[-1], rows["y"].iloc[-1], color=colour, s=45, marker="X", ec="black", zorder=4)
        axes.set_aspect("equal")
        sns.despine(ax=axes)
        axes.set(xlabel=labels[0], ylabel=labels[1])
    radius = np.hypot(table["x"], table["y"])
    first, last = (radius[table["step"] == step].mean() for step in (table["step"].min(), table["step"].max()))
    alt = (
        f"{table['path'].nunique()} paths of {int(table['step'].max())} steps in the plane of {labels[0]} and "
        f"{labels[1]}. Mean distance from the origin: {first:.2f} at the start, {last:.2f} at the end."
    )
    return Picture(figure, alt, table)


def spheres(table: pd.DataFrame) -> Picture:
    """Draw paths on the unit sphere, one sphere for each value of the column state, from dots to crosses.

    Parameters
    ----------
    table : DataFrame
        Columns state, layer, token, x, y, z.
    """
    _require(table, ["state", "layer", "token", "x", "y", "z"])
    names = list(dict.fromkeys(table["state"]))
    turns = np.linspace(0, 2 * np.pi, 61)
    with mpl.rc_context(_THEME):
        figure = Figure(figsize=(2.6 * len(names), 2.9))
        for place, name in enumerate(names, start=1):
            axes: Any = figure.add_subplot(1, len(names), place, projection="3d")
            for height in (-0.6, 0.0, 0.6):
                r = (1 - height**2) ** 0.5
                axes.plot(r * np.cos(turns), r * np.sin(turns), height, color=_NULL, lw=0.4, alpha=0.6)
            for turn in np.pi * np.arange(4) / 4:
                circle = np.cos(turns)
                axes.plot(circle * np.cos(turn), circle * np.sin(turn), np.sin(turns), color=_NULL, lw=0.4, alpha=0.6)
            for token, rows in table[table["state"] == name].groupby("token"):
                rows = rows.sort_values("layer")
                colour = _COLOURS[int(token) % 10]
                axes.plot(rows["x"], rows["y"], rows["z"], color=colour, lw=1)
                for row, marker in ((rows.iloc[0], "o"), (rows.iloc[-1], "X")):
                    axes.scatter(row["x"], row["y"], row["z"], color=colour, marker=marker, s=24, ec="black", lw=0.4)
            axes.set(title=name, xlim=(-0.75, 0.75), ylim=(-0.75, 0.75), zlim=(-0.75, 0.75))
            axes.set_box_aspect((1, 1, 1))
            axes.set_axis_off()
    last = table[table["layer"] == table["layer"].max()]
    ends = []
    for name in names:
        x = last.loc[last["state"] == name, ["x", "y", "z"]].to_numpy()
        cosines = (x @ x.T)[~np.eye(len(x), dtype=bool)]
        ends.append(f"{name}: cosines between tokens from {cosines.min():.2f} to {cosines.max():.2f} at the end")
    count, layers = table["token"].nunique(), int(table["layer"].max())
    return Picture(figure, f"{count} tokens on a sphere over {layers} layers. {'; '.join(ends)}.", table)


def layers_against_layers(table: pd.DataFrame, label: str) -> Picture:
    """Draw a matrix: rows are layers that tokens leave, columns the layers whose eigenspace they are measured on.

    Parameters
    ----------
    table : DataFrame
        Columns layer, eigenspace, value.
    label : str
        What the value is.
    """
    _require(table, ["layer", "eigenspace", "value"])
    matrix = table.pivot_table(index="layer", columns="eigenspace", values="value")
    with mpl.rc_context(_THEME):
        figure, axes = _canvas((5.2, 4.2))
        sns.heatmap(matrix, annot=True, fmt=".2f", cmap="cividis", square=True, ax=axes, cbar_kws={"label": label})
        axes.set(xlabel="eigenspace of layer", ylabel="tokens after attention of layer")
    own = float(np.diagonal(matrix).mean())
    others = float(matrix.to_numpy()[~np.eye(len(matrix), dtype=bool)].mean())
    alt = f"Matrix of {label}, layer against layer: {own:.3f} on the diagonal on average, {others:.3f} elsewhere."
    return Picture(figure, alt, table)


def _canvas(size: tuple[float, float] | None = None) -> tuple[Figure, Axes]:
    """Make a figure outside pyplot: nothing is registered, nothing has to be closed."""
    figure = Figure(figsize=size)
    return figure, figure.subplots()


def _finish(axes: Axes, labels: tuple[str, str]) -> None:
    axes.set(xlabel=labels[0], ylabel=labels[1])
    sns.despine(ax=axes)
    # Below the axes: beside them it would shrink the plot on a narrow screen. As far below a low figure as a high one.
    figure = axes.get_figure()
    height = axes.get_position().height * (figure.get_figheight() if isinstance(figure, Figure) else 1.0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.47 / height), ncols=2, fontsize="small")


def _say_lines(table: pd.DataFrame, x: str, y: str, hue: str, names: Sequence[str], labels: tuple[str, str]) -> str:
    parts = []
    for name in names:
        rows = table[table[hue].astype(str) == name].sort_values(x)
        first, last = rows.iloc[0], rows.iloc[-1]
        parts.append(f"{name}: from {first[y]:.3g} at {first[x]:.3g} to {last[y]:.3g} at {last[x]:.3g}")
    return f"{labels[1]} against {labels[0]}. " + "; ".join(parts) + "."


def _require(table: pd.DataFrame, columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in table]
    if missing or table.empty:
        what = f"lacks the columns {', '.join(missing)}" if missing else "is empty"
        raise CompanionError(f"the table {what}; it has {', '.join(map(str, table.columns))}")
