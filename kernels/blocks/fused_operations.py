"""Work fused to the outputs of a product (bias, residual, one activation), as a fabric program.

Symbols: c cores along the reduction, n rounds of v sums: a core holds the sums of ceil(n / c) rounds.  The
collector at the end of the line sends the sums of a round back, two fp16 per word.  Each router delivers the
first portion to its core; the last word of that portion flips the router to pass-through for the rest.  A
microthread receives the portion during the products, v / 2 cycles of a round that the cost leaves out.  After
its last round every core works on its portion:

    bias        one multiply-accumulate per round (streamed weights: one bias per round; stationary: v biases)
    residual    one addition over the portion;    activation    as in :mod:`wse_sim.kernels.blocks.chains`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Builder, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.shapes import TriggeredShape
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, ceil_div
from wse_sim.kernels.contract.family import Array

BACK = 3  # color of the sums on their way back
ITEMS = ("bias", "residual", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")


def fused_of(text: str) -> Fused | None:
    """Return the operations named by the attribute `fused`; None if it is empty.

    Raises
    ------
    KernelError
        If an operation has no program.
    """
    items = tuple(item.strip() for item in text.split(",") if item.strip())
    if unknown := [item for item in items if item not in ITEMS]:
        raise KernelError(f"fused '{unknown[0]}' has no fabric program; use {', '.join(ITEMS)}")
    return Fused(items) if items else None


@dataclass(frozen=True)
class Fused:
    """The operations, and the buffers of every lane by name after they are declared."""

    items: tuple[str, ...]
    buffers: dict[tuple[int, str], Any] = field(default_factory=dict)
    tolerance: float = 2e-2  # an activation of integers in fp16

    def share(self, shape: TriggeredShape, j: int) -> slice:
        """Return the rounds whose sums are stored on position j (from 1)."""
        size = ceil_div(shape.rounds, shape.sums)
        return slice(min((j - 1) * size, shape.rounds), min(j * size, shape.rounds))

    def count(self, shape: TriggeredShape, j: int) -> int:
        """Number of these rounds."""
        rounds = self.share(shape, j)
        return int(rounds.stop - rounds.start)

    def pitch(self, v: int, dtype: str) -> int:
        """Return the elements from the sums of one round to those of the next: whole words."""
        return v + v % 2 if dtype == "fp16" else v

    def declare(self, b: Builder, shape: TriggeredShape, number: int, dtype: str) -> None:
        """Declare the buffers of one lane: parts of the sums, and what is added to them."""
        size, pitch = ceil_div(shape.rounds, shape.sums), self.pitch(shape.v, dtype)
        where = shape.at(..., ...)
        lengths = {"out": (size * pitch, 0)}
        if "residual" in self.items:
            lengths["residual"] = (size * pitch, 2)
        if "bias" in self.items:
            lengths |= {
                "bias": (size if shape.vertical else shape.v, 1),
                "ones": (shape.v if shape.vertical else size, 1),
            }
        for name, (length, bank) in lengths.items():
            self.buffers[shape.offset, name] = b.buffer(f"{name}{number}", length, dtype, where, bank=bank)
        self.buffers[shape.offset, "turn"] = b.buffer(f"turn{number}", pitch, dtype, shape.at(..., 0))

    def send_back(self, collector: CoreClass, shape: TriggeredShape, arriving: int) -> None:
        """Write the collector: it sends the sums of a round back in order; the last word of a part switches a
        router."""
        turn = self.buffers[shape.offset, "turn"]
        for j in range(1, shape.sums + 1):
            count = self.count(shape, j)
            for rounds, advance in ((count - 1, None), (min(count, 1), "path")):
                with collector.loop(max(0, rounds)):
                    collector.mov(turn.dsd(0, shape.v), fabric_in(arriving), start="none")
                    collector.mov(fabric_out(BACK, advance), turn.dsd(), dtype=turn.dtype, start="none")

    def route(self, b: Builder, shape: TriggeredShape) -> None:
        """Route away from the collector, into the first core that has not received its part."""
        toward, behind = ("W", "E") if shape.vertical else ("N", "S")
        last = max(j for j in range(1, shape.sums + 1) if self.count(shape, j))
        b.route(BACK, shape.at(..., 0), rx="R", tx=behind)
        for j in range(1, last + 1):
            passing = Switch([{"rx": toward, "tx": behind}]) if j < last else None
            b.route(BACK, shape.at(..., j), rx=toward, tx="R", switch=passing)

    def receive(self, core: CoreClass, shape: TriggeredShape, j: int) -> None:
        """Receive the part during the products."""
        out = self.buffers[shape.offset, "out"]
        if rounds := self.count(shape, j):
            share = out.dsd(0, rounds * self.pitch(shape.v, out.dtype))
            core.mov(share, fabric_in(BACK), dtype=out.dtype, start="none", thread=1, priority="high")

    def apply(self, core: CoreClass, shape: TriggeredShape, j: int, wafer: Wafer) -> None:
        """Apply the fused operators to the part, after the last round."""
        rounds = self.count(shape, j)
        if not rounds:
            return
        core.join(1)
        for item in self.items:
            self._emit(core, shape, item, rounds, wafer)

    def _emit(self, core: CoreClass, shape: TriggeredShape, item: str, rounds: int, wafer: Wafer) -> None:
        buffers = {name: found for (offset, name), found in self.buffers.items() if offset == shape.offset}
        out = buffers["out"]
        dtype = out.dtype
        pitch = self.pitch(shape.v, dtype)
        value = out.dsd(0, rounds * pitch)
        if item == "bias":
            each, inner = ("bias", "ones") if shape.vertical else ("ones", "bias")
            core.fmac_vectors(
                *(out.dsd(0, shape.v), buffers[each].dsd(0, rounds), buffers[inner].dsd(0, shape.v), shape.v),
                dst_stride=pitch,
                dtype=dtype,
            )
        elif item == "residual":
            core.add(value, value, buffers["residual"].dsd(0, rounds * pitch), dtype=dtype)
        elif item in SPECIAL_FUNCTIONS:
            period = round(1000 * wafer.special_element_cycles)
            if pitch == shape.v:
                core.map(Fn[item.upper()], value, value, dtype=dtype, period=period)
            else:  # not the halves that fill up the words
                with core.loop(rounds):
                    one = out.dsd(0, shape.v, step=pitch)
                    core.map(Fn[item.upper()], one, one, dtype=dtype, period=period, start="loaded")
        else:
            core.max(value, value, scalar(0.0), dtype=dtype)

    def values(
        self, shape: TriggeredShape, number: int, totals: Array, rng: np.random.Generator
    ) -> tuple[Any, Any]:
        """Return inputs and expected buffers of one lane, from the sums (feeds, 1, rounds, 1, v)."""
        dtype = self.buffers[shape.offset, "out"].dtype
        size, pitch = ceil_div(shape.rounds, shape.sums), self.pitch(shape.v, dtype)
        shares = np.full((shape.feeds, shape.sums, size, pitch), np.nan, np.float32)
        for j in range(1, shape.sums + 1):
            shares[:, j - 1, : self.count(shape, j), : shape.v] = totals[:, 0, self.share(shape, j), 0]
        inputs: dict[str, Any] = {}
        value = core.rounded(shares, dtype)
        for item in self.items:
            if item == "bias":
                bias = rng.integers(-9, 9, (shape.sums, size) if shape.vertical else (shape.feeds, pitch))
                spread = bias[None, :, :, None] if shape.vertical else bias[:, None, None, :]
                value = core.binary("add", value, spread, dtype)
                held = bias[None] if shape.vertical else bias[:, None, : shape.v]
                inputs["bias"] = np.broadcast_to(held, (shape.feeds, shape.sums, held.shape[-1]))
                ones = self.buffers[shape.offset, "ones"].length
                inputs["ones"] = np.ones((shape.feeds, shape.sums, ones))
            elif item == "residual":
                residual = rng.integers(-9, 9, value.shape).astype(np.float32)
                value = core.binary("add", value, residual, dtype)
                inputs["residual"] = residual.reshape(shape.feeds, shape.sums, -1)
            else:
                value = core.unary(item, value, dtype)
        arrays = {**inputs, "out": value.reshape(shape.feeds, shape.sums, -1)}
        laid = {f"{name}{number}": v if shape.vertical else v.swapaxes(0, 1) for name, v in arrays.items()}
        out = laid.pop(f"out{number}")
        return {name: v.astype(np.float32) for name, v in laid.items()}, {f"out{number}": out}
