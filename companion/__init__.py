"""Layer matrices, spectra, the paper's map, alignment and steering of transformers.

The reproducible companion to *Analogies between Transformer Layers and Power Method* (Li and Altafini,
arXiv:2605.25619).
"""

from companion import data, examples, figures, hooks, zoo
from companion.ablation import ablated
from companion.alignment import alignment, excess, tilt, turns
from companion.checkpoints import spectra
from companion.directions import direction, promoted, word_tokens
from companion.dynamics import angles, clusters, consensus, orbit, plane_coordinates, power_step
from companion.errors import CompanionError
from companion.explorer import Explorer
from companion.fates import fates
from companion.landing import Landing, cosines, landing
from companion.layers import AttentionLayer
from companion.limits import affine_limit, layers_to_align, tilt_bound
from companion.models import Model, from_network, load
from companion.nulls import shuffled, twin
from companion.permanent import Steered, steer, unshared
from companion.pricing import continuations, price, strength_at, text_measures
from companion.readings import reading
from companion.rivals import added, raised, sensitive
from companion.samples import Samples
from companion.scaling import norm_scaled
from companion.significance import against_other_layers, against_random, holm
from companion.similarity import similarity
from companion.spectrum import Spectrum, chance_alignment, spectrum
from companion.stability import (
    bipartite_radius,
    head_affinity,
    heads_bipartite_radius,
    jacobian_radius,
    polygon_radius,
    rotation_angle,
    stability_radius,
)
from companion.statistics import over_texts, rank_correlation, share
from companion.steering import steered
from companion.study import Study, studies, study, together
from companion.survey import survey
from companion.tracing import trace
from companion.verdicts import Finding, findings

__all__ = [
    "AttentionLayer",
    "CompanionError",
    "Explorer",
    "Finding",
    "Landing",
    "Model",
    "Samples",
    "Spectrum",
    "Steered",
    "Study",
    "ablated",
    "added",
    "affine_limit",
    "against_other_layers",
    "against_random",
    "alignment",
    "angles",
    "bipartite_radius",
    "chance_alignment",
    "clusters",
    "consensus",
    "continuations",
    "cosines",
    "data",
    "direction",
    "examples",
    "excess",
    "fates",
    "figures",
    "findings",
    "from_network",
    "head_affinity",
    "heads_bipartite_radius",
    "holm",
    "hooks",
    "jacobian_radius",
    "landing",
    "layers_to_align",
    "load",
    "norm_scaled",
    "orbit",
    "over_texts",
    "plane_coordinates",
    "polygon_radius",
    "power_step",
    "price",
    "promoted",
    "raised",
    "rank_correlation",
    "reading",
    "rotation_angle",
    "sensitive",
    "share",
    "shuffled",
    "similarity",
    "spectra",
    "spectrum",
    "stability_radius",
    "steer",
    "steered",
    "strength_at",
    "studies",
    "study",
    "survey",
    "text_measures",
    "tilt",
    "tilt_bound",
    "together",
    "trace",
    "turns",
    "twin",
    "unshared",
    "word_tokens",
    "zoo",
]
