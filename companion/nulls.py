"""What a trained layer is compared with: the same network shuffled, and matrices with the same singular values."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from companion.layers import Site
from companion.models import Model, from_network

__all__ = ["shuffled", "twin"]


@torch.no_grad()
def shuffled(model: Model, seed: int) -> Model:
    """Return a copy of the model in which the entries of every attention matrix are permuted at random.

    Sizes, norms and the distribution of weights stay, structure goes. Embeddings, norms, biases and the
    feed-forward parts keep their trained values. Matrices that layers share are shuffled once.

    Parameters
    ----------
    model : Model
        See :func:`companion.load`; it is not changed.
    seed : int
        Of the permutations.
    """
    other = from_network(copy.deepcopy(model.network), model.tokenizer, f"{model.name} shuffled {seed}")
    generator = torch.Generator().manual_seed(seed)
    parameters = {id(p): p for site in other.sites for p in _attention(site).parameters() if p.ndim == 2}
    for parameter in parameters.values():
        order = torch.randperm(parameter.numel(), generator=generator)
        parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))
    # Layers are read anew: some families' matrices are copies of parameters, not views.
    return from_network(other.network, model.tokenizer, other.name)


def _attention(site: Site) -> nn.Module:
    """Return the part of the block that holds the output matrix: the attention with its four maps."""
    return next(part for part in site.block.children() if site.output in part.modules())


def twin(F: Tensor, seed: int) -> Tensor:
    r"""Return a random matrix with the singular values of F: :math:`A \Sigma B^\top` with A and B Haar orthogonal.

    Its law is the same in every orthonormal basis, so its principal eigenspace is a uniformly random subspace:
    the alignment null of random subspaces *is* the null of twins. What a twin adds is its spectrum: the gap that
    singular values alone would give.

    Parameters
    ----------
    F : Tensor, shape (d, d)
        The layer matrix.
    seed : int
        Of the two orthogonal factors.
    """
    d = F.shape[0]
    rng = np.random.default_rng(seed)
    singular = torch.linalg.svdvals(F.double().cpu()).numpy()
    left, right = (_haar(rng, d) for _ in range(2))
    return torch.from_numpy((left * singular) @ right)


def _haar(rng: np.random.Generator, d: int) -> Any:
    Q, R = np.linalg.qr(rng.standard_normal((d, d)))
    return Q * np.sign(np.diagonal(R))  # without the signs QR is not uniform
