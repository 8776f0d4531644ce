"""Ways to place rectangles on the fabric, behind one interface.

``get_placer(name).place(problem, seed=..., time_limit_s=...)``; the names are in :func:`placer_names`.
"""

from __future__ import annotations

from collections.abc import Callable

from wse_sim.compiler.placers.problem import Block, ListedShapes, Placement, PlacementProblem, Placer
from wse_sim.errors import ConfigError

__all__ = [
    "Block",
    "ListedShapes",
    "Placement",
    "PlacementProblem",
    "Placer",
    "get_placer",
    "place_rectangles",
    "placer_names",
]


def _portfolio() -> Placer:
    from wse_sim.compiler.placers.portfolio import PortfolioPlacer

    return PortfolioPlacer()


def _shelves() -> Placer:
    from wse_sim.compiler.placers.shelves import ShelfPlacer

    return ShelfPlacer()


_REGISTRY: dict[str, Callable[[], Placer]] = {"portfolio": _portfolio, "shelves": _shelves}


def placer_names() -> list[str]:
    """Names of the placers, alphabetically."""
    return sorted(_REGISTRY)


def get_placer(name: str) -> Placer:
    """The placer called `name`."""
    if name not in _REGISTRY:
        raise ConfigError(f"there is no placer {name!r}; use one of {', '.join(placer_names())}")
    return _REGISTRY[name]()
