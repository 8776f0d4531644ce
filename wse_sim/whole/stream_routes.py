"""Routes of streams as a program lays them out: travel times and words per link, which replace the plan's
straight routes.

The plan routes a stream from the middle of one region to the middle of the next, on as many links as its
words need. A program sends from the last row, or from the cores that collect gradients, to an inlet, in
bundles (one per band of attention), and gradients take separate routes. So its routes are longer, have more
turns and cross other links.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.streams import with_way
from wse_sim.fabric.format.count import control_words
from wse_sim.fabric.format.program import Program
from wse_sim.hardware import Wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.paths import PORTS, Cell, direction
from wse_sim.whole.trees import Tree, Way

Ends = tuple[str, str, str]
"""A tensor, its producer and its reader."""
Cycles = Mapping[Ends, float]
Links = Iterator[tuple[Cell, str, float]]
"""Triples of a router, the output port, and the words per sample that leave through it."""


def legs_cycles(legs: Iterable[Sequence[Cell]], wafer: Wafer) -> float:
    """Return the cycles that a word takes along consecutive legs; between two legs a core receives it and
    sends it on."""
    found = [wafer.travel_cycles(cells) for cells in legs]
    return sum(found) + max(0, len(found) - 1) * wafer.handover_cycles


def cells_to(way: Way, sink: Cell) -> list[Cell]:
    """Return the cells of a route from its source to one of its sinks."""
    cells = [sink]
    while cells[-1] != way.source:
        cells.append(way.parents[cells[-1]])
    return cells[::-1]


def tree_cycles(
    trees: Sequence[Tree], inlets: Mapping[str, Mapping[str, Sequence[Cell]]], wafer: Wafer
) -> Cycles:
    """Return the travel time of every stream between regions: that of its longest bundle. `inlets` maps
    (reader, tensor) to the inlet's cells."""
    found: dict[Ends, float] = {}
    for tree in trees:
        for stream in tree.streams:
            cells = [
                cell for cell in inlets.get(stream.consumer, {}).get(tree.tensor, ()) if cell in tree.sinks
            ]
            ends = tree.tensor, stream.producer, stream.consumer
            for cell in cells:
                found[ends] = max(found.get(ends, 0.0), legs_cycles([cells_to(tree, cell)], wafer))
    return found


def with_ways(plan: PipelinedPlan, there: Cycles, back: Cycles) -> PipelinedPlan:
    """Return the plan with the travel times of these routes, forward and backward, and the samples in flight
    on them."""
    streams, stages = [], {stage.name: stage for stage in plan.stages}
    for stream in plan.streams:
        ends = stream.tensor, stream.producer, stream.consumer
        if ends in there:
            forward = there[ends]
            laid = dataclasses.replace(stream, laid_cycles=(forward, back.get(ends, forward)))
            stream = with_way(laid, stages, plan.pace_cycles, plan.wafer)
        streams.append(stream)
    return dataclasses.replace(plan, streams=tuple(streams))


def way_links(way: Way, words: float) -> Links:
    """Return the links of a route, each with `words`."""
    for cell, parent in way.parents.items():
        yield parent, direction(parent, cell), words


class Controls:
    """Control words per sample that switch routers to the next sender of a route; they travel with its data.

    They are counted from a program that runs `samples` samples.
    """

    def __init__(self, program: Program, samples: int) -> None:
        self._sent, self._samples = control_words(program), samples

    def of(self, color: int, senders: Iterable[Cell]) -> float:
        """Return the control words per sample that these cells send on a color."""
        sent = self._sent.get(color)
        return 0.0 if sent is None else sum(int(sent[cell]) for cell in set(senders)) / self._samples


def link_map(links: Links, rows: int, cols: int) -> NDArray[np.float64]:
    """Return an array (rows, cols, 4) of the words per sample that leave each router north, east, south and
    west."""
    words = np.zeros((rows, cols, len(PORTS)))
    for (row, col), port, count in links:
        words[row, col, PORTS.index(port)] += count
    return words
