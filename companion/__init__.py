"""Layer matrices, spectra, the paper's map, alignment and steering of transformers.

The reproducible companion to *Analogies between Transformer Layers and Power Method* (Li and Altafini,
arXiv:2605.25619).
"""

from companion import data, examples, figures, hooks, zoo
from companion.ablation import ablated
from companion.alignment import alignment, excess, tilt, turns
from companion.checkpoints import spectra
from companion.dynamics import angles, clusters, consensus, orbit, plane_coordinates, power_step
from companion.errors import CompanionError
from companion.fates import fates
from companion.layers import AttentionLayer
from companion.limits import affine_limit, layers_to_align, tilt_bound
from companion.models import Model, from_network, load
from companion.nulls import shuffled, twin
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
from companion.steering import cosines, reading, steered
from companion.study import Study, studies, study, together
from companion.survey import survey
from companion.tracing import trace
from companion.verdicts import Finding, findings

__all__ = [
    "AttentionLayer",
    "CompanionError",
    "Finding",
    "Model",
    "Spectrum",
    "Study",
    "ablated",
    "affine_limit",
    "against_other_layers",
    "against_random",
    "alignment",
    "angles",
    "bipartite_radius",
    "chance_alignment",
    "clusters",
    "consensus",
    "cosines",
    "data",
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
    "layers_to_align",
    "load",
    "norm_scaled",
    "orbit",
    "over_texts",
    "plane_coordinates",
    "polygon_radius",
    "power_step",
    "rank_correlation",
    "reading",
    "rotation_angle",
    "share",
    "shuffled",
    "similarity",
    "spectra",
    "spectrum",
    "stability_radius",
    "steered",
    "studies",
    "study",
    "survey",
    "tilt",
    "tilt_bound",
    "together",
    "trace",
    "turns",
    "twin",
    "zoo",
]
