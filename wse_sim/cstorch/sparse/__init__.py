"""Sparse weights: masks that are state, applied to weights, gradients and the optimizer's moments.

    Static  a mask, made once                     GMP   prunes the smallest weights as the schedule of sparsity rises
    SET     drops the smallest, grows at random   RigL  drops the smallest, grows where gradients are largest

A weight where the mask is 0 is 0, so the forward pass needs no change.  The fraction of ones goes to the simulation:
zeros are not streamed.  Sources: Zhu and Gupta 2017 (GMP), Mocanu et al. 2018 (SET), Evci et al. 2020 (RigL).
"""

from wse_sim.cstorch.appliance.utils.classes import retrieve_all_subclasses
from wse_sim.cstorch.signatures import evaluate
from wse_sim.cstorch.sparse.algorithms import (
    GMP,
    SET,
    DynamicSparsity,
    Group,
    RigL,
    SparsityAlgorithm,
    Static,
)
from wse_sim.cstorch.sparse.configure import (
    configure,
    configure_sparsity_optimizer,
    configure_sparsity_wrapper,
    default_sparse_param_filter,
    map_sparsity_algorithm,
)
from wse_sim.cstorch.sparse.schedules import (
    Constant,
    Cosine,
    Exponential,
    FreqUpdateSchedule,
    Linear,
    ListUpdateSchedule,
    Polynomial,
    Steps,
    UpdateSchedule,
)
from wse_sim.cstorch.sparse.wrapper import SparsityWrapperOptimizer

__all__ = [
    "GMP",
    "SET",
    "Constant",
    "Cosine",
    "DynamicSparsity",
    "Exponential",
    "FreqUpdateSchedule",
    "Group",
    "Linear",
    "ListUpdateSchedule",
    "Polynomial",
    "RigL",
    "SparsityAlgorithm",
    "SparsityWrapperOptimizer",
    "Static",
    "Steps",
    "UpdateSchedule",
    "configure",
    "configure_sparsity_optimizer",
    "configure_sparsity_wrapper",
    "default_sparse_param_filter",
    "map_sparsity_algorithm",
]

evaluate(SparsityAlgorithm, {})
for _kind in retrieve_all_subclasses(SparsityAlgorithm):
    evaluate(_kind, {})
