"""Placers: ways to place rectangles, one file each.

A placer is a file of this folder that names an object ``PLACER`` (or several, ``PLACERS``) of a class below; no other
file lists it.  ``package.module:NAME`` takes one from anywhere else.  Two sorts answer different questions:

:class:`RectanglePlacer`   rectangles of a :class:`PlacementProblem`: instances of the contest, and stages by their shapes
:class:`StagePlacer`       the stages of a pipeline, by what they cost on any rectangle

The algorithms are in :mod:`wse_sim.compiler.placement`; a placer's file loads its own when it is used.
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
