"""Everything that the model chapters say about one model, as small tables that can be kept and sent.

A study is computed once and kept on disk by all that it depends on, so a run that stopped goes on where it was. A
model that cannot be studied leaves its reason instead of stopping the others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock
from tqdm import tqdm

from companion import data, hooks, kept
from companion.ablation import ablated
from companion.alignment import by_target, excess, tilt, turns
from companion.circumstances import circumstances
from companion.dynamics import orbit
from companion.errors import CompanionError, StudyError
from companion.fates import fates
from companion.models import Model, load
from companion.nulls import shuffled, twin
from companion.scaling import norm_scaled
from companion.significance import against_other_layers, against_random
from companion.similarity import similarity
from companion.spectrum import Order, chance_alignment, spectrum
from companion.statistics import over_texts
from companion.survey import survey
from companion.tracing import Target, trace

__all__ = ["Study", "studies", "study", "together"]

_ORDERS: tuple[Order, ...] = ("residual", "modulus", "real")
_DRAWS = 299  # random subspaces: enough for Holm's correction of 14 layers at 0.05
_SHUFFLES = 3
_TWINS = 5
_VERSIONS = ("torch", "transformers", "numpy", "scipy", "pandas", "companion")


@dataclasses.dataclass(frozen=True)
class Study:
    """One model's tables.

    Attributes
    ----------
    name : str
        The model.
    tables : dict of DataFrame
        ``layers``, ``orders``, ``matrix``, ``turns``, ``ways``, ``cosine``, ``heads``, ``fates``, ``shuffled``;
        see :func:`study`. Empty where the model could not be studied.
    provenance : dict
        Model (source, revision, checksums), texts, seed, versions, commit, hardware, time, seconds.
    failure : str
        Why there are no tables, or "".
    """

    name: str
    tables: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
    failure: str = ""

    def save(self, path: Path) -> None:
        """Write the study as one JSON file, whole or not at all."""
        content = {
            "name": self.name,
            "failure": self.failure,
            "provenance": self.provenance,
            "tables": {
                key: json.loads(table.to_json(orient="split", index=False)) for key, table in self.tables.items()
            },
        }
        kept.write(path, json.dumps(content))

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read what :meth:`save` wrote.

        Raises
        ------
        StudyError
            If the file is no study.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            tables = {key: pd.DataFrame(**table) for key, table in content["tables"].items()}
            return cls(content["name"], tables, content["provenance"], content["failure"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StudyError(f"{path} is no study: {error}") from error


def study(model: Model, texts: Sequence[str], seed: int = 0) -> dict[str, pd.DataFrame]:
    r"""Compute the tables of one model.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : sequence of str
        Every interval is over these.
    seed : int
        Of random subspaces, shuffles, twins and resamples.

    Returns
    -------
    dict of DataFrame
        * ``layers``: a row a layer and order ("residual", "modulus", "real", and "norm-scaled" for pre-norm networks):
          kind, real, imag, growth, gap, chance; gamma and rho with intervals; lead (own minus other layers'
          eigenspaces in rho) and rise (own minus random subspaces in rho) with intervals; for "residual" also
          gap_twin (mean gap of matrices with the same singular values), effect, p and holm against random subspaces.
        * ``orders``: a row an order: mean over layers of the lead with its interval over texts; p of the permutation of
          eigenspaces among layers.
        * ``matrix``: layer, eigenspace, value (gamma in units of chance), order "residual".
        * ``turns``: layer, part, mean, low, high: see :func:`companion.turns`.
        * ``ways``: way ("map", "network", "no feed-forward", "equal weights"), layer, gamma, rho with intervals.
        * ``cosine``: layer, mean, low, high: see :func:`companion.similarity`.
        * ``heads``: see :func:`companion.survey`.  ``fates``: layer, real, and mean, low, high of each share.
        * ``shuffled``: seed, layer, gamma, rho of :func:`companion.shuffled` networks.
    """
    targets: tuple[Target, ...] = ("own", "random", "other")
    residual = trace(model, texts, seed=seed, targets=targets, draws=_DRAWS)
    traces: dict[str, pd.DataFrame] = {"residual": residual}
    for order in _ORDERS[1:]:
        traces[order] = trace(model, texts, order=order, seed=seed, targets=targets)
    scaled = None
    if model.sites[0].input_norm is not None:
        scaled = norm_scaled(model, texts)
        traces["norm-scaled"] = trace(model, texts, seed=seed, targets=targets, matrices=scaled)
    layers = pd.concat([_layers(model, order, rows, scaled, seed) for order, rows in traces.items()])
    return {
        "layers": layers.reset_index(drop=True),
        "orders": pd.DataFrame([_order(order, rows, seed) for order, rows in traces.items()]),
        "matrix": _matrix(model, residual),
        "turns": over_texts(turns(residual), "change", ["layer", "part"], seed=seed),
        "ways": _ways(model, texts, residual, seed),
        "cosine": over_texts(similarity(model, texts), "cosine", ["layer"], seed=seed),
        "heads": survey(model, texts).drop(columns="model"),
        "fates": _fates(model, texts, seed),
        "shuffled": _shuffled(model, texts, seed),
    }


def studies(
    names: dict[str, str], folder: Path | None = None, seed: int = 0, device: str = "cpu", progress: bool = False
) -> list[Study]:
    """Study models one after the other, keeping each on disk as soon as it is done.

    Parameters
    ----------
    names : dict of str
        From a model's name to the texts that it reads (see :func:`companion.data.texts`).
    folder : Path or None
        Where studies are kept, by default that of :mod:`companion.kept`; several processes may share it.
    seed : int
        See :func:`study`.
    device : str
        Where networks run.
    progress : bool
        Whether to show a bar that counts models.

    Returns
    -------
    list of Study
        In the order of ``names``. A model that fails has its reason in :attr:`Study.failure`; that is not kept, so
        the next call tries again.
    """
    folder = folder or kept.folder("studies")
    found = []
    for name, kind in tqdm(names.items(), desc="studies", unit=" models", disable=not progress):
        path = folder / f"{name.replace('/', '--')}-{_key(name, kind, seed, device)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if path.is_file():
                found.append(Study.read(path))
                continue
            made = _studied(name, kind, seed, device)
            if not made.failure:
                made.save(path)
            found.append(made)
    return found


def together(found: Sequence[Study], table: str) -> pd.DataFrame:
    """Return one table of several studies under each other, the model's name in the column ``model``.

    Raises
    ------
    StudyError
        If none of the models could be studied.
    """
    parts = [one.tables[table].assign(model=one.name) for one in found if not one.failure]
    if not parts:
        raise StudyError("no model could be studied: " + "; ".join(f"{one.name}: {one.failure}" for one in found))
    return pd.concat(parts, ignore_index=True)


def _studied(name: str, kind: str, seed: int, device: str) -> Study:
    started = time.time()
    provenance: dict[str, Any] = {
        "texts": kind,
        "seed": seed,
        "versions": _versions(),
        **circumstances(Path(__file__).parent, device),
    }
    try:
        model = load(name, device=device)
        tables = study(model, data.texts(kind), seed)
    except (CompanionError, MemoryError, RuntimeError) as error:  # RuntimeError: out of memory, in torch's words
        return Study(name, {}, provenance, f"{type(error).__name__}: {error}")
    provenance |= {"model": model.provenance, "seconds": round(time.time() - started, 1)}
    return Study(name, tables, provenance)


def _layers(model: Model, order: str, traced: pd.DataFrame, scaled: Any, seed: int) -> pd.DataFrame:
    """One row a layer in one order."""
    spectra: dict[int, Any] = {}
    rows = []
    for index, layer in enumerate(model.layers):
        key = index if order == "norm-scaled" else id(layer)
        if key not in spectra:
            F = scaled[index] if order == "norm-scaled" else layer.F
            found = spectrum(F, order="residual" if order == "norm-scaled" else order)  # type: ignore[arg-type]
            spectra[key] = {**found.leading, "chance": chance_alignment(*found.basis.shape)}
            if order == "residual":
                twins = [spectrum(twin(layer.F, seed + i)).gap for i in range(_TWINS)]
                spectra[key]["gap_twin"] = sum(twins) / len(twins)
        rows.append({"layer": index, "order": order, **spectra[key]})
    table = pd.DataFrame(rows).merge(tilt(traced, seed=seed).drop(columns=["texts", "tokens"]), on="layer")
    shared = len(set(map(id, model.layers))) == 1 and order != "norm-scaled"
    for over, name in (("random", "rise"), ("other", "lead")):
        if over == "other" and shared:
            continue
        difference = excess(traced, over=over, seed=seed)  # type: ignore[arg-type]
        for suffix in ("", "_low", "_high"):
            table[f"{name}{suffix}"] = difference[f"rho{suffix}"]
            table[f"{name}_gamma{suffix}"] = difference[f"gamma{suffix}"]
    if order == "residual":
        ranks = against_random(traced)
        for name in ("gamma", "rho"):
            for suffix in ("effect", "p", "holm"):
                table[f"{name}_{suffix}"] = ranks[f"{name}_{suffix}"]
    return table


def _order(order: str, traced: pd.DataFrame, seed: int) -> dict[str, Any]:
    """How well one order's eigenspaces predict where tokens go: own against other layers."""
    kinds = traced["target"].astype(str).str.split("-").str[0]
    if "layer" not in set(kinds):  # one layer, shared
        return {"order": order, "mean": float("nan"), "low": float("nan"), "high": float("nan"), "p": float("nan")}
    after = traced[traced["stage"] == "attention"].assign(kind=kinds, share=lambda t: t["risen"] / t["n"])
    by_text = after.groupby(["text", "layer", "kind"], observed=True)["share"].mean().unstack("kind")
    lead = (by_text["own"] - by_text["layer"]).groupby("text").mean().rename("lead").reset_index()
    row = over_texts(lead.assign(order=order), "lead", ["order"], seed=seed).iloc[0]
    try:
        p = against_other_layers(traced, seed=seed)["p"]
    except CompanionError:
        p = float("nan")  # groups of layers that share weights
    return {"order": order, **{name: float(row[name]) for name in ("mean", "low", "high")}, "p": p}


def _matrix(model: Model, traced: pd.DataFrame) -> pd.DataFrame:
    chance = [chance_alignment(*spectrum(layer.F).basis.shape) for layer in model.layers]
    table = by_target(traced)["gamma"].reset_index()
    table = table[~table["target"].str.startswith("random")]
    own = table["target"] == "own"
    table["eigenspace"] = table["layer"].where(
        own, table["target"].str.removeprefix("layer-").where(~own, "0").astype(int)
    )
    table["value"] = table["gamma"] / table["eigenspace"].map(dict(enumerate(chance)))
    return table[["layer", "eigenspace", "value"]].reset_index(drop=True)


def _ways(model: Model, texts: Sequence[str], residual: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the tilt of the map, of the network, and of the network without one of its parts."""
    found = {"network": tilt(residual, seed=seed)}
    with ablated(model, "feed-forward"):
        found["no feed-forward"] = tilt(trace(model, texts, targets="own", seed=seed), seed=seed)
    with ablated(model, "softmax"):
        found["equal weights"] = tilt(trace(model, texts, targets="own", seed=seed, batch_size=1), seed=seed)
    found["map"] = tilt(_map_trace(model, texts), seed=seed)
    columns = ["layer", *(f"{q}{e}" for q in ("gamma", "rho") for e in ("", "_low", "_high"))]
    return pd.concat([table[columns].assign(way=way) for way, table in found.items()], ignore_index=True)


def _map_trace(model: Model, texts: Sequence[str]) -> pd.DataFrame:
    """Return what :func:`companion.trace` would read if the network were the paper's map, from the embedding on."""
    bases = {id(layer): torch.as_tensor(spectrum(layer.F).basis) for layer in model.layers}
    layers = [layer.to(torch.float64) for layer in model.layers]
    rows = []
    for text, window in model.encoded(texts):
        ids = torch.tensor([window], device=model.device)
        x = _embedding(model, ids)
        # Attention reads tokens of the norm that a LayerNorm leaves, in pre-norm networks too.
        states = orbit(x, layers, radius=x.shape[-1] ** 0.5)
        for index, layer in enumerate(model.layers):
            pair = states[index : index + 2].flatten(1, -2) @ bases[id(layer)].to(states)
            before, after = pair.norm(dim=-1)
            for stage, gamma in (("in", before), ("attention", after)):
                row = {"layer": index, "stage": stage, "target": "own", "text": text, "n": len(gamma)}
                rows.append({**row, "gamma": float(gamma.sum()), "risen": int((gamma > before).sum())})
    table = pd.DataFrame(rows).groupby(["layer", "stage", "target", "text"], as_index=False).sum()
    return table.assign(model=model.name)


@torch.no_grad()
def _embedding(model: Model, ids: torch.Tensor) -> torch.Tensor:
    return hooks.states(model.network.base_model, model.sites[:1], ids, "in")[0].double()


def _fates(model: Model, texts: Sequence[str], seed: int) -> pd.DataFrame:
    table = fates(model, texts)
    if table.empty:
        return pd.DataFrame(columns=["layer", "real", "fate", "mean", "low", "high"])
    long = table.melt(["layer", "text", "real"], ["grown", "shrunk", "overshot"], "fate", "share")
    return over_texts(long, "share", ["layer", "real", "fate"], seed=seed)


def _shuffled(model: Model, texts: Sequence[str], seed: int) -> pd.DataFrame:
    tables = []
    for i in range(_SHUFFLES):
        traced = trace(shuffled(model, seed + i), texts, targets="own", seed=seed)
        tables.append(by_target(traced).reset_index().drop(columns="target").assign(seed=seed + i))
    return pd.concat(tables, ignore_index=True)


def _key(name: str, kind: str, seed: int, device: str) -> str:
    """Hash of all that a study depends on and that can be told without loading the model."""
    state = hashlib.sha256(json.dumps([name, kind, seed, device.split(":")[0]]).encode())
    package = Path(str(files("companion")))
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".txt") or p.name == "SHA256SUMS"):
        state.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    state.update(json.dumps(_versions()).encode())
    return state.hexdigest()[:16]


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}}
