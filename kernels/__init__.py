"""The kernel library, installed as ``wse_sim.kernels``: one file per kernel family, four faces each."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from wse_sim.kernels.base import REGISTRY, Cost, Family, Footprint, Tiling, family, register

__all__ = ["REGISTRY", "Cost", "Family", "Footprint", "Tiling", "family", "load_families", "register"]

# Files that serve the families and define none.
SUPPORT = frozenset(
    {"base", "command", "equations", "lines", "mesh", "numerics", "products"}
    | {"summa", "trees", "triggered", "wafer_llm"}
)


@cache
def load_families() -> tuple[str, ...]:
    """Import every file of the library, so that each registers its family; returns the file names."""
    names = tuple(sorted(item.name for item in iter_modules(__path__) if item.name not in SUPPORT))
    for name in names:
        import_module(f"{__name__}.{name}")
    return names
