"""Layer and RMS norm: a column of cores, a token on each.

Symbols: T tokens of D features, R rows; t = T / R tokens per core (R the largest divisor of T that fits)::

    inlet > token by token, down the column >      core: statistics, scale, shift       > up the column and out

A core needs no other, so there are no collectives; the instructions are those of the kernel's own program for whole
rows.  A core receives the next token and sends the last beside them: D / 2 words each::

    per sample    t (instructions of D features + D / 2 received + D / 2 sent)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.line_programs import RowWork
from wse_sim.kernels.blocks.line_stages import Lines, Sharing, issued
from wse_sim.kernels.families.norm import affine_of, forward_work
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Floats,
    Inlet,
    PlacedKernel,
    Ports,
    RegionKind,
    divisor,
    refused,
    rows_in_turn,
)
from wse_sim.whole.regions.turns import (
    advance_of,
    alternate,
    deal,
    receive_all,
    route_senders,
    route_takers,
)

RECEIVE, SEND = 1, 2  # microthreads


def affine_parts(kernel: Kernel) -> dict[str, object]:
    """The attribute of a norm that has fewer parameters than its kind: a scale alone, or nothing."""
    if kernel.family != "norm" or len(kernel.parameters) >= len(affine_of(kernel.attrs)):
        return {}
    return {"affine": ("none", "scale")[len(kernel.parameters)]}


class NormPlace(PlacedKernel):
    """A normalisation of the features of every token, on a column of cores which take tokens in turn."""

    family = "norm"
    title = "layer and RMS norms"

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Rows of a sample."""
        return int(kernel.dims["rows"]) // graph.samples

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Layer or RMS norm of one operand; a shift only beside a scale."""
        kind = str(kernel.attrs.get("kind", "layer"))
        if kind not in ("layer", "rms"):
            raise refused(kernel, f"is a {kind} norm", "a whole model on the fabric has layer and rms norms")
        if not kernel.attrs.get("whole", False):
            raise refused(
                kernel, "may lie in several ways in its region", "plan the graph of inputs_over_rows(graph)"
            )
        has = affine_of(kernel.attrs)
        if len(kernel.inputs) != 1 or len(kernel.parameters) != len(has):
            raise refused(
                kernel,
                f"has {len(kernel.inputs)} operands and {len(kernel.parameters)} parameters, a {kind} norm on the "
                f"fabric one and {len(has)}",
                "scale and shift by parameters of the norm",
            )
        if has == ("shift",):
            raise refused(kernel, "has a shift and no scale", "give it a scale of ones")

    def extent(self) -> tuple[int, int]:
        """A column of cores."""
        return divisor(self.tokens, rows_in_turn(self.region, self.wafer)), 1

    @property
    def features(self) -> int:
        """Of a token."""
        return int(self.kernel.dims["cols"])

    @property
    def each(self) -> int:
        """Tokens of a core."""
        return self.tokens // self.height

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Beside the first core."""
        return (Inlet(self.kernel.inputs[0], (self.top, self.left - 1)),)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """All cores, the first token's first."""
        return tuple((self.top + i, self.left) for i in range(self.height))


def apart(work: RowWork) -> RowWork:
    """The same instructions; the last one writes to a buffer of results, and not over the token."""
    *before, last = work.vectors
    return RowWork((*before, replace(last, to="result")), {**work.shapes, "result": work.shapes["x"]})


class NormRegion(NormPlace, RegionKind):
    """A norm in inference."""

    own_colors = 1

    @property
    def work(self) -> RowWork:
        """The instructions; the last one writes to a buffer of results, so that the next token can come meanwhile."""
        return apart(forward_work("fp16", self.kernel.attrs, self.features))

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """The inlet, and a class for every kind of turn among the cores."""
        rounds, feed = samples * self.each, ports.own[0]
        inlet = b.core_class(f"{self.name} inlet")
        with inlet.loop(rounds):
            share = [(fabric_in(ports.inward[0]), self.features)]
            deal(inlet, feed, [share] * self.height, self.height)
        b.place(inlet, self.inlets[0].cell)
        route_takers(b, feed, self.inlets[0].cell, self.senders, 0, "E")
        route_senders(b, ports.outward, self.senders, ports.towards)
        turns = self._declare(b)
        for advance in dict.fromkeys(advance_of(i, self.height) for i in range(self.height)):
            core = b.core_class(f"{self.name} {advance or ''}")
            self._core(core, turns, ports, rounds, advance)
            for i, cell in enumerate(self.senders):
                if advance_of(i, self.height) == advance:
                    b.place(core, cell)

    def _declare(self, b: Builder) -> list[Lines]:
        """Two buffers of results, and the instructions from a buffer of tokens to each."""
        where, shapes = (self.rows, self.columns), self.work.shapes
        layout = self.work.layout(1, self.features, self.wafer)
        others = {
            name: b.buffer(
                f"{self.name}.{name}", layout.elements(shape.kind), shape.dtype, where, bank=shape.bank
            )
            for name, shape in shapes.items()
            if name not in ("x", "result") and not shape.within
        }
        stride = 1 if layout.length == 1 else self.features
        turns = []
        for i in (0, 1):
            x = b.buffer(f"{self.name}.x{i}", self.features, "fp16", where, bank=0)
            result = b.buffer(f"{self.name}.result{i}", self.features, "fp16", where, bank=0)
            buffers, alone = {**others, "x": x, "result": result}, Sharing(1, (), 0, 0)
            turns.append(Lines(shapes, buffers, layout, alone, self.wafer, apart=stride))
        return turns

    def _core(
        self,
        core: CoreClass,
        turns: list[Lines],
        ports: Ports,
        rounds: int,
        advance: str | None,
    ) -> None:
        def receive(turn: int) -> None:
            receive_all(core, ports.own[0], turns[turn].buffers["x"].dsd(), RECEIVE)

        def work(turn: int) -> None:
            lines = turns[turn]
            lines.emit(core, self.work.vectors, 0)
            result = lines.buffers["result"].dsd()
            core.mov(
                fabric_out(ports.outward, advance),
                result,
                dtype="fp16",
                start="none",
                thread=SEND,
                priority="high",
            )

        alternate(core, rounds, receive, work, (RECEIVE,))

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Scale and shift in every core."""
        names = affine_of(self.kernel.attrs)
        return {
            f"{self.name}.{name}": np.broadcast_to(
                weights[parameter].reshape(1, 1, -1), (self.height, 1, self.features)
            )
            for name, parameter in zip(names, self.kernel.parameters, strict=True)
        }

    def issued_cycles(self) -> float:
        """As the module says."""
        layout = self.work.layout(1, self.features, self.wafer)
        instructions = float(sum(issued(self.work.vectors, self.work.shapes, layout, self.wafer)))
        return self.each * (instructions + 2 * self.features / PAIR)
