"""Errors meant for a person: what was wrong, with which value, and what to do about it."""

__all__ = [
    "CompanionError",
    "HubError",
    "LayerError",
    "ModelNotFoundError",
    "SelfCheckError",
    "SpectrumError",
    "SteeringError",
    "StudyError",
    "TextError",
    "UnsupportedModelError",
    "WeightsError",
]


class CompanionError(Exception):
    """Base of every error that this package raises for a person to read."""


class ModelNotFoundError(CompanionError):
    """No model answers to the name, or a folder holds none."""


class HubError(CompanionError):
    """The model hub could not be reached, or refused."""


class WeightsError(CompanionError):
    """Weights are damaged, swapped, incomplete, or hold values that are not finite."""


class UnsupportedModelError(CompanionError):
    """The architecture has no adapter."""


class SelfCheckError(CompanionError):
    """The layer matrices do not reproduce the network's own attention."""


class LayerError(CompanionError):
    """Matrices, masks or layer indices that do not fit together."""


class SpectrumError(CompanionError):
    """A matrix that has no spectrum to speak of, or an eigenspace that is not determined."""


class TextError(CompanionError):
    """Texts that cannot be turned into tokens."""


class SteeringError(CompanionError):
    """A direction, strength or reading that cannot steer."""


class StudyError(CompanionError):
    """A file of results that cannot be read, or that does not check out."""
