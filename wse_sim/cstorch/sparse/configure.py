"""Configures sparsity from a mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from wse_sim.cstorch import faults
from wse_sim.cstorch.sparse.algorithms import (
    GMP,
    SET,
    Group,
    RigL,
    SparsityAlgorithm,
    Static,
    default_sparse_param_filter,
)
from wse_sim.cstorch.sparse.wrapper import SparsityWrapperOptimizer

__all__ = [
    "configure",
    "configure_sparsity_optimizer",
    "configure_sparsity_wrapper",
    "default_sparse_param_filter",
    "map_sparsity_algorithm",
]

ALGORITHMS: dict[str, type[SparsityAlgorithm]] = {"static": Static, "gmp": GMP, "set": SET, "rigl": RigL}


def map_sparsity_algorithm(algorithm: str) -> type[SparsityAlgorithm]:
    """Return the class of an algorithm, by its name in any case.

    Raises:
        ProgramError: no algorithm has the name.
    """
    cls = ALGORITHMS.get(str(algorithm).lower())
    if cls is None:
        raise faults.program_error(
            f"the sparsity algorithm '{algorithm}' is unknown; the algorithms are {', '.join(ALGORITHMS)}"
        )
    return cls


def _one(spec: Mapping[str, Any]) -> SparsityAlgorithm:
    rest = dict(spec)
    cls = map_sparsity_algorithm(rest.pop("algorithm", None) or rest.pop("type", None) or "static")
    rest.setdefault("param_filter", rest.pop("param_name_patterns", None))
    return cls(**rest)


def configure(config: float | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> SparsityAlgorithm:
    """Return an algorithm from a fraction of zeros (static), a dict with ``algorithm``, or a list of dicts with
    ``param_filter``.
    """
    if isinstance(config, SparsityAlgorithm):
        return config
    if isinstance(config, int | float):
        return Static(sparsity=config)
    if isinstance(config, Mapping):
        return _one(config)
    group = Group()
    for spec in config:
        algorithm = _one(spec)
        group.add(algorithm.param_filter, algorithm)
    return group


def configure_sparsity_optimizer(
    sparsity_type: str, named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None, **config: Any
) -> SparsityAlgorithm:
    """Return an algorithm by its type, as earlier releases configure it; then ``hook_module`` and the wrapper."""
    groups = config.pop("groups", None)
    if groups:
        made: SparsityAlgorithm = configure([{"type": sparsity_type, **config, **dict(g)} for g in groups])
    else:
        made = _one({"type": sparsity_type, **config})
    made.persistent = False
    for algorithm in getattr(made, "algorithms", ()):
        algorithm.persistent = False
    return made


def configure_sparsity_wrapper(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, sparsity_type: str = "static", **config: object
) -> SparsityWrapperOptimizer:
    """Make masks for a model, and wrap its optimizer so that it applies them."""
    sparsity = configure_sparsity_optimizer(sparsity_type, model.named_parameters(), **config)
    sparsity.hook_module(model)
    return SparsityWrapperOptimizer(optimizer, sparsity)
