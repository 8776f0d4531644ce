"""Placers: algorithms that place rectangles, one file each.

A placer is a file of this folder that defines an object ``PLACER`` (or several, ``PLACERS``) of a class
below; no other file lists it. ``package.module:NAME`` names a placer outside this folder. There are two
kinds:

:class:`RectanglePlacer`   places the rectangles of a :class:`PlacementProblem`, made from the contest or from stages
:class:`StagePlacer`       places the stages of a pipeline, by their cost on any rectangle

The algorithms are in :mod:`wse_sim.compiler.placement`; the file of a placer imports its algorithm when it is
used.
"""

from wse_sim.compiler.placers.base import Placer, RectanglePlacer, StagePlacer
from wse_sim.compiler.placers.registry import (
    forget_placer,
    placer_named,
    placer_names,
    placers,
    rectangle_placer,
    register_placer,
)

__all__ = [
    "Placer",
    "RectanglePlacer",
    "StagePlacer",
    "forget_placer",
    "placer_named",
    "placer_names",
    "placers",
    "rectangle_placer",
    "register_placer",
]
