"""Ways to place rectangles on the fabric, behind one interface.

``get_placer(name).place(problem, seed=..., time_limit_s=...)``; the names are in :func:`placer_names`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def place_rectangles(problem: PlacementProblem, **options: Any) -> Placement:
    """See :func:`wse_sim.compiler.placers.rectangles.place_rectangles`."""
    from wse_sim.compiler.placers.rectangles import place_rectangles as place

    return place(problem, **options)


def _shelves() -> Placer:
    from wse_sim.compiler.placers.shelves import ShelfPlacer

    return ShelfPlacer()


def _peel() -> Placer:
    from wse_sim.compiler.placers.portfolio import PeelPlacer

    return PeelPlacer()


def _exact() -> Placer:
    from wse_sim.compiler.placers.exact import ExactPlacer

    return ExactPlacer()


_REGISTRY: dict[str, Callable[[], Placer]] = {
    "exact": _exact,
    "peel": _peel,
    "portfolio": _portfolio,
    "shelves": _shelves,
}


def placer_names() -> list[str]:
    """Names of the placers, alphabetically."""
    return sorted(_REGISTRY)


def get_placer(name: str) -> Placer:
    """The placer called `name`."""
    if name not in _REGISTRY:
        raise ConfigError(f"there is no placer {name!r}; use one of {', '.join(placer_names())}")
    return _REGISTRY[name]()
