"""Steering that stays: a copy with the edit in its weights, as a checkpoint or as a LoRA adapter of rank 1."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from companion.adapters import sites_of
from companion.errors import SteeringError
from companion.models import Model
from companion.steering import Edit, applied, planned

__all__ = ["Steered", "steer", "unshared"]


@dataclass(frozen=True, eq=False)
class Steered(Model):
    """A model with a rank-1 edit in its weights, made by :func:`steer`.

    Attributes
    ----------
    edit : Edit
        Layer, column and row of what was added to ``W_O``.
    """

    edit: Edit

    def save_pretrained(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write an ordinary Hugging Face checkpoint that plain ``transformers`` loads; tokenizer included.

        The safetensors' metadata hold, under ``companion``, the factors of the edit and where the weights came from.

        Parameters
        ----------
        folder : str or Path
            Written whole or not at all.
        overwrite : bool
            Whether a folder that is there may be replaced.

        Raises
        ------
        SteeringError
            If the folder is there already, or cannot be written.
        """
        with _whole(Path(folder), overwrite) as draft:
            self.network.save_pretrained(draft)
            for path in draft.glob("*.safetensors"):
                save_file(load_file(path), path, {"format": "pt", "companion": json.dumps(self._record())})
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(draft)

    def save_lora(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the edit alone, as a LoRA adapter of rank 1 for the model that was steered (``peft`` loads it).

        Parameters and errors are those of :meth:`save_pretrained`.
        """
        module = self._module()
        config = {
            "peft_type": "LORA",
            "base_model_name_or_path": self.provenance["steered"]["model"],
            "r": 1,
            "lora_alpha": 1,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": [module],
            # GPT-2 stores its maps as (in, out).
            "fan_in_fan_out": type(self.sites[self.edit.layer].output).__name__ == "Conv1D",
            "inference_mode": True,
        }
        factors = {"lora_A": self.edit.row[None], "lora_B": self.edit.column[:, None]}
        with _whole(Path(folder), overwrite) as draft:
            (draft / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
            save_file(
                {f"base_model.model.{module}.{key}.weight": value.float() for key, value in factors.items()},
                draft / "adapter_model.safetensors",
                {"format": "pt", "companion": json.dumps(self._record())},
            )

    def _module(self) -> str:
        output = self.sites[self.edit.layer].output
        return next(name for name, module in self.network.named_modules() if module is output)

    def _record(self) -> dict[str, Any]:
        return {
            **self.provenance["steered"],
            "module": self._module(),
            "column": self.edit.column.tolist(),
            "row": self.edit.row.tolist(),
            "companion": version("companion"),
        }


def steer(model: Model, direction: Tensor, strength: float, layer: int = -1, reading: Tensor | None = None) -> Steered:
    """Return a copy of a model that is steered for good; the model itself stays as it is.

    Parameters and errors are those of :func:`companion.steered`. Where layers share weights, all of them are edited;
    :func:`unshared` gives each its own first.

    Examples
    --------
    >>> companion.steer(model, direction, 100.0).save_pretrained("steered")
    """
    edit = planned(model, direction, strength, layer, reading)
    network = copy.deepcopy(model.network)
    sites = sites_of(network)
    W = sites[edit.layer].layer.W_O
    with torch.no_grad():
        W.copy_(applied(W, edit, strength))
    record = {"model": model.name, "from": model.provenance, "layer": edit.layer, "strength": strength}
    return Steered(
        f"{model.name}, steered", network, model.tokenizer, sites, {**model.provenance, "steered": record}, edit
    )


def unshared(model: Model) -> Model:
    """Return a copy whose layers no longer share weights: the same function, with a matrix of its own for each layer.

    Raises
    ------
    SteeringError
        If layers share weights in an architecture that cannot be written without (all but ALBERT).
    """
    old = model.network
    if len({id(site) for site in model.sites}) == len(model.sites):
        return model
    if old.config.model_type != "albert":
        raise SteeringError(
            f"{model.name}: layers of a {old.config.model_type!r} cannot be told to stop sharing weights"
        )
    config = copy.deepcopy(old.config)
    config.num_hidden_groups = layers = config.num_hidden_layers
    network = type(old)(config).to(device=old.device, dtype=old.dtype)
    network.base_model.pooler = copy.deepcopy(old.base_model.pooler)
    groups = old.base_model.encoder.albert_layer_groups
    for index, group in enumerate(network.base_model.encoder.albert_layer_groups):
        group.load_state_dict(groups[index * len(groups) // layers].state_dict())
    rest = {key: value for key, value in old.state_dict().items() if ".albert_layer_groups." not in key}
    network.load_state_dict(rest, strict=False)
    network.eval().requires_grad_(False)
    return Model(f"{model.name}, unshared", network, model.tokenizer, sites_of(network), model.provenance)


@contextmanager
def _whole(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Give a folder beside the wanted one, which takes its place when the block ends well, and goes otherwise."""
    if folder.exists() and not overwrite:
        raise SteeringError(f"{folder} is there already; choose another folder, or say overwrite=True")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise SteeringError(f"{folder} cannot be written: {error}") from error
    try:
        yield draft
        draft.chmod(0o755)  # a temporary folder is the owner's alone
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            folder.replace(old / folder.name)
            draft.replace(folder)
            shutil.rmtree(old)
        else:
            draft.replace(folder)
    except (OSError, RuntimeError) as error:
        raise SteeringError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
