"""Layer matrices, spectra, the paper's map, alignment and steering of transformers.

The reproducible companion to *Analogies between Transformer Layers and Power Method* (Li and Altafini,
arXiv:2605.25619).
"""

from companion.alignment import alignment, excess, tilt
from companion.dynamics import orbit, power_step
from companion.errors import CompanionError
from companion.layers import AttentionLayer
from companion.models import Model, from_network, load
from companion.spectrum import Spectrum, spectrum
from companion.steering import reading, steered
from companion.tracing import trace

__all__ = [
    "AttentionLayer",
    "CompanionError",
    "Model",
    "Spectrum",
    "alignment",
    "excess",
    "from_network",
    "load",
    "orbit",
    "power_step",
    "reading",
    "spectrum",
    "steered",
    "tilt",
    "trace",
]
