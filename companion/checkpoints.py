"""Spectra of a checkpoint without loading its network: one layer's attention at a time, kept on disk for next time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from tqdm import tqdm

from companion import kept
from companion.adapters import ADAPTERS, check_supported
from companion.errors import WeightsError
from companion.layers import AttentionLayer, layer_matrix
from companion.models import read_config
from companion.sources import Checkpoint, find
from companion.spectrum import spectrum

__all__ = ["layers_of", "spectra"]

_ORDERS = ("residual", "modulus", "real")
_RULES = 1  # of what is kept: raise it when a spectrum would come out otherwise


def spectra(name: str, cache: Path | None = None, progress: bool = False) -> pd.DataFrame:
    r"""Return the leading eigenvalue of every layer of a checkpoint, however large, in the three orders.

    Only queries, keys, values, outputs and the norm in front are read, a layer at a time, from safetensors (sharded
    ones too). Half-precision weights give the float64 spectrum of the stored values. Results are kept on disk by the
    checksum of the tensors; processes may share the folder and write at once.

    Parameters
    ----------
    name : str
        As for :func:`companion.load`.
    cache : Path or None
        Folder to keep results in; by default that of :mod:`companion.kept`.
    progress : bool
        Whether to show a bar that counts layers.

    Returns
    -------
    DataFrame
        One row a layer and order: model, layer, order, d, kind, real, imag, growth (:math:`|1 + \lambda|`), gap,
        error (bound on the eigenvalue's numerical error), method.

    Raises
    ------
    ModelNotFoundError, HubError, WeightsError, UnsupportedModelError
        As :func:`companion.load`.

    Examples
    --------
    >>> companion.spectra("minilm").query("order == 'real'")["real"].round(3).tolist()[0]
    1.238
    """
    checkpoint = find(name)
    folder = cache or kept.folder("spectra")
    rows: list[dict[str, Any]] = []
    config = read_config(checkpoint)
    check_supported(config)
    bar = tqdm(desc=f"spectra {name}", unit=" layers", disable=not progress)
    for index, layer in enumerate(layers_of(checkpoint, config)):
        key = _checksum(layer)
        found = _kept(folder / f"{key}.json")
        if found is None:
            F = layer_matrix(layer)
            found = [_leading(F, order) for order in _ORDERS]
            _keep(folder / f"{key}.json", found)
        rows += [{"model": name, "layer": index, **entry} for entry in found]
        bar.update()
    bar.close()
    return pd.DataFrame(rows)


def layers_of(checkpoint: Checkpoint, config: Any) -> Iterator[AttentionLayer]:
    """Yield the layers of a checkpoint one after the other; no more than one is in memory.

    A layer that shares its weights with an earlier one is read again: what it costs is small, and nothing is kept.
    """
    family = ADAPTERS[config.model_type]
    with torch.device("meta"):
        network = transformers.AutoModel.from_config(config)
    tensors = _Tensors(checkpoint)
    names = {id(module): prefix for prefix, module in network.named_modules()}
    blocks = list(family.blocks(network))
    for index, block in enumerate(blocks):
        parts = [part for part in block.children() if _is_read(part, block)]
        try:
            for part in parts:
                _fill(part, names[id(part)], tensors)
            # Only its matrices are asked for, so modules without weights may stay as they are.
            yield family.site(network, block, index).layer
        finally:
            for part in parts:
                part.to("meta")


def _is_read(part: nn.Module, block: nn.Module) -> bool:
    """Whether a part of a block is its attention or the norm that its gain is taken from."""
    attention = {"attention", "attn", "self_attn"}
    before = {"ln_1", "input_layernorm", "self_attn_layer_norm"}
    name = next(name for name, child in block.named_children() if child is part)
    return name in attention | before


def _fill(part: nn.Module, prefix: str, tensors: _Tensors) -> None:
    for owner_name, owner in part.named_modules():
        for leaf, parameter in owner.named_parameters(recurse=False):
            name = ".".join(filter(None, (prefix, owner_name, leaf)))
            tensor = tensors.get(name)
            if tensor.shape != parameter.shape:
                raise WeightsError(
                    f"{tensors.where}: {name} has shape {tuple(tensor.shape)} instead of {tuple(parameter.shape)}; "
                    "config.json is another model's"
                )
            if not bool(torch.isfinite(tensor).all()):
                raise WeightsError(f"{tensors.where}: the tensor {name} holds NaN or infinity")
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)


class _Tensors:
    """The tensors of a checkpoint by name, read when asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.where = checkpoint.folder
        self.files: dict[str, Path] = {}
        self.pickled: dict[str, Tensor] = {}
        for path in checkpoint.weights:
            try:
                if path.suffix == ".safetensors":
                    with safe_open(path, framework="pt") as opened:
                        self.files.update(dict.fromkeys(opened.keys(), path))
                else:
                    self.pickled.update(torch.load(path, map_location="cpu", weights_only=True, mmap=_mappable(path)))
            except (SafetensorError, OSError, RuntimeError, ValueError) as error:
                raise WeightsError(f"the weights in {path} cannot be read: {error}") from error

    def get(self, name: str) -> Tensor:
        """Return a tensor; checkpoints of a network with a head put the name of its body in front."""
        for known in (self.files, self.pickled):
            for stored in known:
                if stored == name or stored.endswith(f".{name}"):
                    return self._read(stored)
        raise WeightsError(
            f"the checkpoint in {self.where} lacks the tensor {name}; "
            "it is incomplete, or config.json is another model's"
        )

    def _read(self, stored: str) -> Tensor:
        if stored in self.pickled:
            return self.pickled[stored]
        with safe_open(self.files[stored], framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(stored)
        return tensor


def _mappable(path: Path) -> bool:
    """Whether a pickled checkpoint is of the zipped kind, which need not be read as a whole."""
    with path.open("rb") as stream:
        return stream.read(2) == b"PK"


def _leading(F: Tensor, order: Any) -> dict[str, Any]:
    found = spectrum(F, order=order)
    return {
        "order": order,
        "d": F.shape[0],
        **found.leading,
        "error": found.error,
        "method": found.method,
    }


def _checksum(layer: AttentionLayer) -> str:
    """SHA-256 of what the layer matrix is made from: the stored numbers, their type and shape."""
    digest = hashlib.sha256(f"rules {_RULES}".encode())
    for W in (layer.W_V, layer.W_O):
        digest.update(f"{W.dtype} {tuple(W.shape)}".encode())
        digest.update(W.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _kept(path: Path) -> list[dict[str, Any]] | None:
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not there, or damaged: it is made again
    return found


def _keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write whole or not at all; a folder that cannot be written to only costs time."""
    try:
        kept.write(path, json.dumps(rows))
    except OSError:
        return
