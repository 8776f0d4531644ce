"""Ways of streams as a program lays them: what a word takes on them, and words of every link, instead of the plan's straight ways.

The plan leads a stream from the middle of a region to the middle of the next, on as many links as its words need.  A program sends from
the last row, or from the cores that collect gradients, to an inlet, in bundles (one for every band of attention), and gradients
go separate ways.  So its ways are longer, have more corners, and cross other links.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

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
"""A tensor, who makes it, who reads it."""
Cycles = Mapping[Ends, float]
Links = Iterator[tuple[Cell, str, float]]
"""Routers, the ports by which words leave them, and how many do so for a sample."""


def legs_cycles(legs: Iterable[Sequence[Cell]], wafer: Wafer) -> float:
    """Cycles of a word on legs one after the other; a core takes it in and sends it on between two."""
    found = [wafer.travel_cycles(cells) for cells in legs]
    return sum(found) + max(0, len(found) - 1) * wafer.handover_cycles


def cells_to(way: Way, sink: Cell) -> list[Cell]:
    """The cells of a way from its source to one of its sinks."""
    cells = [sink]
    while cells[-1] != way.source:
        cells.append(way.parents[cells[-1]])
    return cells[::-1]


def tree_cycles(
    trees: Sequence[Tree], inlets: Mapping[str, Mapping[str, Sequence[Cell]]], wafer: Wafer
) -> Cycles:
    """Of every stream between regions, the longest of its bundles; `inlets` by reader and tensor."""
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
    """The plan with the times of a word on these ways, forward and of gradients, and with the samples that are on them."""
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
    """The links of a way, each with these words."""
    for cell, parent in way.parents.items():
        yield parent, direction(parent, cell), words


def leg_links(cells: Sequence[Cell], words: float) -> Links:
    """The links from cell to cell."""
    for here, there in pairwise(cells):
        yield here, direction(here, there), words


class Controls:
    """Control words of a sample that turn senders of a way back: they leave with its data.

    Counted from a program of that many samples.
    """

    def __init__(self, program: Program, samples: int) -> None:
        self._sent, self._samples = control_words(program), samples

    def of(self, color: int, senders: Iterable[Cell]) -> float:
        """Those that cells send on a color."""
        sent = self._sent.get(color)
        return 0.0 if sent is None else sum(int(sent[cell]) for cell in set(senders)) / self._samples


def link_map(links: Links, rows: int, cols: int) -> NDArray[np.float64]:
    """(rows, cols, 4) words of a sample that leave north, east, south and west."""
    words = np.zeros((rows, cols, len(PORTS)))
    for (row, col), port, count in links:
        words[row, col, PORTS.index(port)] += count
    return words
