"""The placer ``shelves``, which is quick and the default for plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wse_sim.compiler.placers.base import StagePlacer

if TYPE_CHECKING:
    from wse_sim.compiler.shelves import Box
    from wse_sim.compiler.sizing import Sizer


class Shelves(StagePlacer):
    """Placer of stages by a dynamic program over shelves across the wafer."""

    name = "shelves"
    about = "dynamic program over shelves in dataflow order, like a snake; the default, takes seconds"

    def placements(self, sizer: Sizer, objective: str) -> Iterator[tuple[float, list[Box]]]:
        """Yield the placements of :func:`wse_sim.compiler.shelves.shelf_placements`."""
        from wse_sim.compiler.shelves import shelf_placements

        return shelf_placements(sizer, objective)


PLACER = Shelves()
