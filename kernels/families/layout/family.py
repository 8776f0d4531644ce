"""Change of layout: cat, slice, pad, copy, transpose, permute, ...

Mapping: elements spread over all cores, n = ceil(elements / cores), b = words(n).

    view, reshape                    T = 0           (addresses only)
    fill                             T = o + n / mov
    copies (cat, slice, pad, ...)    T = o + m + hop + 2 T_R + 1 + o_l + n / mov      (to a neighbour at most)
    exchanges (transpose, permute)   T = 2 o + max(m, (R + C) m / 4) + (R + C) hop

m = b for 16-bit elements, whose streams move two words per issue cycle (SIMD-64), 2 b for fp32: sending and
receiving share the issue slot.  An exchange sends half of each row's words over its middle link, C b / 4 per
direction, then half of each column's.  Source: link width; the same bound as the transpose of a published
FFT.

joined (an attribute): S cores in a column send a part of every row; some rows rest on them, or they pass only the first on;
rows of w words, S up to most_bundles: T = words(E) / w ceil(w / S).

Program: a copy sends to the east neighbour, receives from the west and stores the received elements; an
exchange transposes a matrix tiled on a square (:mod:`wse_sim.kernels.families.layout.exchange`).  Band: 3 %
(16 bit), 5 % (fp32, from 200 elements per core).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import fabric_in, fabric_out
from wse_sim.fabric.format.classes import Travel
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.ring import WIDE
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, mov_rate, per_core, relay_cycles, words
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Lay,
    Probe,
    ProgramOptions,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.layout.exchange import exchange_program

FREE = frozenset({"view", "reshape", "unsqueeze", "squeeze", "expand", "detach", "alias", "flatten"})
EXCHANGES = frozenset({"transpose", "permute", "roll", "flip", "shuffle", "movedim", "t"})
LOCAL = frozenset({"fill"})
PROBE_SIDE = 8  # side of the square on which an exchange is measured
PROBE_ELEMENTS = 2048  # per core; larger sizes are measured by the difference of two runs


@dataclass(frozen=True)
class LayoutAttributes(Attributes):
    """Attributes of a movement."""

    op: str = attribute(
        "copy", "how the elements move: copy, fill, transpose, gather, scatter, first (of the tokens), ..."
    )
    joined: bool = attribute(False, "cat: a core per stream sends what rests on it, then what comes")
    token_words: int = attribute(
        0, "joined: words of a row, divided among its parallel streams; 0: not given"
    )


class Layout(OnElements):
    """The family of data movement without arithmetic."""

    name = "layout"
    cheaper = "keep the order of axes that the next product reads, so that nothing is moved"
    dims = sizes(elements="elements that move")
    programs = "copy to a neighbour, fill; transpose on a square of cores"
    bands = "3 %; fp32 transposes 5 % from 200 elements per core"
    attributes = LayoutAttributes
    moves = True

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """Data that cores join enters and leaves over a link per core."""
        said = LayoutAttributes.of(attrs)
        return Lay("rows", "rows", most_links=max(1, said.most_bundles)) if said.joined else Lay()

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of stage buffers and of code; cores that join pass words on and have no buffers."""
        if LayoutAttributes.of(asked(how).attrs).joined:
            return Footprint(code_bytes=wafer.kernel_code_bytes)
        return super().footprint(dims, tiling, wafer, **how)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: zero, local work, a copy, or an exchange over the middle links."""
        _, dtype, attrs = self.asked(tiling, how)
        op = LayoutAttributes.of(attrs).op
        n = per_core(dims["elements"], tiling)
        zero = 0.0 * n
        if LayoutAttributes.of(attrs).joined:
            return _joined_cost(dims, tiling, wafer, dtype, LayoutAttributes.of(attrs)) + Cost(ramp=zero)
        if op in FREE:
            return Cost(compute=zero)
        start, placed = wafer.vector_start_cycles, n / mov_rate(dtype, wafer)
        if op in LOCAL:
            return Cost(compute=placed, startup=start + zero)
        moved = words(n, dtype) * wafer.wavelet_cycles * (1 if bytes_of(dtype) < 4 else 2)
        if op not in EXCHANGES:
            apart = 1.0 * (np.asarray(tiling.cols) > 1)  # a single column has no neighbour
            return Cost(
                compute=placed,
                ramp=moved * apart + zero,
                startup=start + wafer.vector_start_loaded_cycles * apart + zero,
                idle=relay_cycles(wafer) * apart + zero,
            )
        middle = (tiling.rows + tiling.cols) * moved / 4.0
        return Cost(
            ramp=moved + zero,
            fabric=np.maximum(0.0, middle - moved) + zero,
            startup=2 * start + zero,
            idle=(tiling.rows + tiling.cols) * wafer.hop_cycles + zero,
        )

    def compute(self, *operands: Array, op: str = "copy", axes: Any = None, dtype: str = "fp32") -> Array:
        """Return the moved values: copy, cat (along `axes`), transpose or permute (to `axes`), pad (`axes` =
        widths)."""
        values = [core.rounded(x, dtype) for x in operands]
        if op == "cat":
            return np.concatenate(values, axis=0 if axes is None else axes)
        if op in {"transpose", "permute", "t"}:
            return np.ascontiguousarray(np.transpose(values[0], axes))
        if op == "pad":
            return np.pad(values[0], axes)
        if op in {"copy", "clone", "contiguous"}:
            return values[0].copy()
        raise KernelError(f"layout has no numerics for '{op}'; use copy, cat, transpose, permute, pad")

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program: a transpose on a square, a fill, or a copy to the east neighbour.

        Raises
        ------
        KernelError
            For a rectangle that is not square (exchanges), or operators that move nothing.
        """
        _, dtype, attrs = self.asked(tiling, options)
        op, seed = LayoutAttributes.of(attrs).op, int(options.get("seed", 0))
        rows, cols = int(tiling.rows), int(tiling.cols)
        n = int(per_core(dims["elements"], tiling))
        if op in FREE:
            raise KernelError(f"layout '{op}' changes addresses only and has no program; it takes no cycles")
        if op not in EXCHANGES:
            return copy_program(n, rows, cols, wafer, dtype, seed, moves=op not in LOCAL)
        if rows != cols:
            raise KernelError(f"layout '{op}' on {rows} x {cols} cores has no program; use a square of cores")
        return exchange_program(n, rows, wafer, dtype, seed)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on a square for an exchange, or on four cores of a row for a copy."""
        phase, dtype, attrs = asked(how)
        op, n = LayoutAttributes.of(attrs).op, int(per_core(dims["elements"], tiling))
        if op in FREE:
            return ()
        exchange = op in EXCHANGES
        small = Tiling(PROBE_SIDE, PROBE_SIDE, "streamed") if exchange else Tiling(1, 4, "streamed")
        whole, cores = n <= PROBE_ELEMENTS, int(small.rows) * int(small.cols)
        cost = self.cost(dims, tiling, wafer, **how)
        stands = Cost(
            compute=cost.compute,
            ramp=cost.ramp,
            fabric=cost.fabric,
            startup=cost.startup if whole else 0.0,
            idle=0.0 if exchange or not whole else cost.idle,
        )
        return (
            Probe(
                part="exchange" if exchange else "copy" if op not in LOCAL else op,
                family=self.name,
                dims={"elements": n * cores} if whole else {},
                tiling=small,
                step="" if whole else "elements",
                start=1 if whole else PROBE_ELEMENTS // 2 * cores,
                cost=stands,
                tile=f"{n} elements",
                dtype=dtype,
                phase=phase,
                attrs={"op": "transpose" if exchange else op if op in LOCAL else "copy"},
            ),
        )


def _joined_cost(dims: Dims, tiling: Tiling, wafer: Wafer, dtype: str, said: LayoutAttributes) -> Cost:
    """Return the cost of rows that cores join: the words of the largest stream; at least the streams that others need."""
    whole, row = words(dims["elements"], dtype), said.token_words
    if not (row and said.most_bundles):
        return Cost(ramp=whole * wafer.wavelet_cycles)
    high = tiling.rows - ((tiling.rows == wafer.rows) & (wafer.rows > 1))
    count = np.clip(high, 1, min(said.most_bundles, row))
    sent = np.where(count >= said.least_bundles, whole / row * ceil_div(row, count), np.inf)
    return Cost(ramp=sent * wafer.wavelet_cycles)


def copy_program(n: int, rows: int, cols: int, wafer: Wafer, dtype: str, seed: int, *, moves: bool) -> Case:
    """Return a program in which every core stores its west neighbour's n elements, or its own without
    `moves`."""
    b = new_builder(rows, cols, wafer)
    x, y = b.buffer("x", n, dtype), b.buffer("y", n, dtype)
    moves = moves and cols > 1
    values = np.random.default_rng(seed).integers(-99, 99, (rows, cols, n)).astype(np.float32)
    how: Travel = {"dtype": dtype, "wire": WIDE.get(dtype)}
    for j in range(cols):
        k, source, sends, receives = b.core_class(f"column {j}"), x, moves and j + 1 < cols, moves and j > 0
        if receives:
            # Receives are posted before any send, so that no word waits for the start of an instruction.
            source = b.buffer(f"z{j}", n, dtype, (slice(None), j))
            k.mov(source.dsd(), fabric_in((j + 1) % 2), thread=2, priority="medium", start="none", **how)
            b.route((j + 1) % 2, (slice(None), j), rx="W", tx="R")
        if sends:
            k.mov(fabric_out(j % 2), x.dsd(), thread=1, priority="medium", **how)
            b.route(j % 2, (slice(None), j), rx="R", tx="E")
        if receives:
            k.join(2)
        k.mov(y.dsd(), source.dsd(), dtype=dtype, start="loaded" if sends or receives else "code")
        b.place(k, (slice(None), j))
    if moves:
        for color in (0, 1) if cols > 2 else (0,):
            b.input_queue(color, 0)  # six words keep a stream of pairs at full rate
    expected = np.roll(values, 1, axis=1) if moves else values
    if moves:
        expected[:, 0] = values[:, 0]
    return Case(b.build(), b.config, {"x": values}, {"y": expected})


FAMILY = register(Layout())
