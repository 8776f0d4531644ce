"""The kernel library, on three floors.

``contract``  the interface of a kernel family: its methods, costs in closed form, core arithmetic, the registry
``blocks``    building blocks that several families share: lines, trees, rings, products, rows, chains of operators
``families``  the families: one file or one folder each; the collectives share a folder

A file imports only from the floors below its own. A family imports no other family, except collectives.
"""

from __future__ import annotations

from wse_sim.kernels.contract.family import Case, Cost, Family, Flow, Footprint, Kept, Tiling
from wse_sim.kernels.contract.parameters import Attributes, Parameter, attribute, sizes
from wse_sim.kernels.contract.registry import (
    REGISTRY,
    check_graph,
    check_kernel,
    family,
    load_families,
    load_path,
    register,
)
from wse_sim.kernels.contract.tape import Tape

__all__ = [
    "REGISTRY",
    "Attributes",
    "Case",
    "Cost",
    "Family",
    "Flow",
    "Footprint",
    "Kept",
    "Parameter",
    "Tape",
    "Tiling",
    "attribute",
    "check_graph",
    "check_kernel",
    "family",
    "load_families",
    "load_path",
    "register",
    "sizes",
]
