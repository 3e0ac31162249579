"""Where steered tokens land: predicted in closed form, and measured at every stage of the layer and behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from companion import hooks
from companion.errors import SteeringError
from companion.layers import check_layer
from companion.steering import planned, unit

__all__ = ["Landing", "cosines", "landing"]

_STAGES = ("in", "attention", "norm", "ffn", "out")


@dataclass(frozen=True)
class Landing:
    r"""What decides where each token lands right after attention, at every strength.

    Unsteered, a token leaves attention as :math:`u = a\,d + w` with :math:`w \perp d`; it reads
    :math:`r = p \cdot z`. Steered by :math:`\alpha` it leaves as :math:`(a + \alpha r)\,d + w`.

    Attributes
    ----------
    table : DataFrame
        One row a token: text, along (:math:`a`), across (:math:`\lVert w \rVert`), read (:math:`r`).
    """

    table: pd.DataFrame

    def cosines(self, strength: float) -> NDArray[np.float64]:
        r"""Return each token's signed cosine with the direction: of :math:`(a + \alpha r)\, d + w`."""
        along = self.table["along"] + strength * self.table["read"]
        return (along / np.hypot(along, self.table["across"])).to_numpy()

    def strength(self, cosine: float, share: float = 1.0) -> float:
        r"""Return the strength from which a share of tokens has at least this absolute cosine, on its final side.

        A token needs :math:`\alpha = (\kappa \lVert w \rVert - \operatorname{sign}(r)\, a) / |r|` with
        :math:`\kappa = c / \sqrt{1 - c^2}`.

        Raises
        ------
        SteeringError
            If the cosine is not between 0 and 1.
        """
        if not 0 < cosine < 1:
            raise SteeringError(f"cosine={cosine} must lie between 0 and 1; 1 itself takes infinite strength")
        kappa = cosine / np.sqrt(1 - cosine**2)
        along, across, read = (self.table[name].to_numpy() for name in ("along", "across", "read"))
        needed = np.maximum((kappa * across - np.sign(read) * along) / np.abs(read), 0)
        return float(np.quantile(needed, share, method="inverted_cdf"))


@torch.no_grad()
def landing(
    model: Any, texts: Iterable[str], direction: Tensor, layer: int = -1, reading: Tensor | None = None
) -> Landing:
    """Read off the unsteered network where :func:`companion.steered` would send each token.

    Exact where no earlier layer shares the edited matrix, since what reaches the layer does not change then.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`.
    texts : iterable of str
        Read lazily.
    direction, layer, reading
        As for :func:`companion.steered`.

    Raises
    ------
    SteeringError, LayerError, TextError
        For a direction, a reading, a layer or texts that cannot be used.
    """
    index, d, p = planned(model, direction, 1.0, layer, reading)
    rows: list[pd.DataFrame] = []
    read = torch.empty(0)

    def see(text: int, at: int, stage: str, x: Tensor) -> None:
        nonlocal read
        if at != index:
            return
        x = x.flatten(0, 1).double().cpu()
        if stage == "heads":
            read = x @ p
            return
        along = x @ d
        across = torch.linalg.vector_norm(x - along[:, None] * d, dim=1)
        rows.append(pd.DataFrame({"text": text, "along": along, "across": across, "read": read}))

    hooks.walk(model, texts, ["heads", "attention"], see)
    return Landing(pd.concat(rows, ignore_index=True))


@torch.no_grad()
def cosines(model: Any, texts: Iterable[str], direction: Tensor, layer: int = -1) -> pd.DataFrame:
    """Measure how tokens stand to a direction at every stage of one layer and at the network's end, steered or not.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`; call this inside :func:`companion.steered` to see what steering does.
    texts : iterable of str
        One row a text and stage.
    direction : Tensor, shape (d_model,)
        Any non-zero length.
    layer : int
        Index of the layer, negative from the end.

    Returns
    -------
    DataFrame
        text, stage (those of ``in``, ``attention``, ``norm``, ``ffn`` and ``out`` that the layer has, and ``head``:
        what the output head reads, behind the network's last norm), signed and absolute (mean cosine over tokens),
        smallest (of the absolute ones), plus (share of tokens with positive cosine).

    Raises
    ------
    SteeringError, LayerError, TextError
        For a direction, a layer or texts that cannot be used.
    """
    index = check_layer(layer, len(model.layers))
    d = unit(direction, model.layers[index].d_model).to(model.device, model.network.dtype)
    found: dict[tuple[int, str], list[Tensor]] = {}
    number = 0

    def see(at: int, stage: str, x: Tensor) -> None:
        if at == index:
            cosine = x @ d / torch.linalg.vector_norm(x, dim=-1)
            found.setdefault((number, stage), []).append(cosine.flatten().double().cpu())

    base = model.network.base_model
    with hooks.watch(base, model.sites, _STAGES, see):
        for text, window in model.encoded(texts):
            number = text
            see(index, "head", base(input_ids=torch.tensor([window], device=model.device))[0])
    by_place = {key: torch.cat(parts).numpy() for key, parts in found.items()}
    places = pd.MultiIndex.from_tuples(by_place, names=["text", "stage"]).to_frame(index=False)
    return places.assign(
        signed=[values.mean() for values in by_place.values()],
        absolute=[abs(values).mean() for values in by_place.values()],
        smallest=[abs(values).min() for values in by_place.values()],
        plus=[(values > 0).mean() for values in by_place.values()],
    )
