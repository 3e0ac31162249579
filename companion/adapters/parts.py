"""What several families store alike: linear maps, grouped heads, rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from companion.layers import Rotation


def linear(**maps: nn.Linear) -> dict[str, Any]:
    """``W_*`` and ``b_*`` of ordinary linear maps, as views of their parameters."""
    tensors: dict[str, Any] = {}
    for letter, module in maps.items():
        tensors[f"W_{letter}"] = module.weight.detach()
        tensors[f"b_{letter}"] = None if module.bias is None else module.bias.detach()
    return tensors


def grouped(tensors: dict[str, Any], n_heads: int, n_groups: int) -> dict[str, Any]:
    """Repeat keys and values of grouped-query attention, so that every head has its own (copies, not views)."""
    if n_heads == n_groups:
        return tensors
    return tensors | {
        name: _repeated(tensors[name], n_groups, n_heads // n_groups) for name in ("W_K", "b_K", "W_V", "b_V")
    }


def _repeated(rows: Tensor | None, n_groups: int, times: int) -> Tensor | None:
    if rows is None:
        return None
    return rows.unflatten(0, (n_groups, -1)).repeat_interleave(times, 0).flatten(0, 1)


def rotary(embedding: Any, q_norm: Any = None, k_norm: Any = None) -> Rotation:
    """Return what turns queries and keys as rotary positions do, after the norm of each head where there is one.

    Parameters
    ----------
    embedding : Module
        The network's table of cosines and sines; it may turn fewer coordinates than a head has.
    q_norm, k_norm : Module or None
        Norms over a head's coordinates.
    """

    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if q_norm is not None and k_norm is not None:
            q, k = q_norm(q), k_norm(k)
        n = q.shape[-2]
        cos, sin = embedding(q, torch.arange(n, device=q.device)[None])
        return _turned(q, cos[0].to(q), sin[0].to(q)), _turned(k, cos[0].to(k), sin[0].to(k))

    return rotate


def positions(embedding: Any) -> Callable[[Tensor], dict[str, Any]]:
    """Return what a block with rotary positions is given beside its tokens, see :class:`companion.layers.Site`."""
    return lambda x: {"position_embeddings": embedding(x, torch.arange(x.shape[1], device=x.device)[None])}


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn coordinate i with coordinate i + r / 2, for the first r coordinates of each head."""
    r = cos.shape[-1]
    first, second = x[..., : r // 2], x[..., r // 2 : r]
    turned = x[..., :r] * cos + torch.cat([-second, first], -1) * sin
    return torch.cat([turned, x[..., r:]], -1)
