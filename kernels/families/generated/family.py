"""Generated kernel: a chain of elementwise operators and reductions that belongs to no other family.

Mapping: elements spread over all cores, n = ceil(elements / cores); a reduction (sum, mean, max) in the
chain also reduces ceil(rows / R) results along the row of cores and multicasts them back.

    T = sum over ops of (o + n / rate) + n e (special functions) + rows o_loaded and all-reduce per reduction

The backward pass has the instructions of each operator (:mod:`wse_sim.kernels.blocks.chains`).
Source: vector rates of the SDK documentation; special elements and all-reduce from calibration.
Program: chains forward and backward, with one reduction at the end (:mod:`wse_sim.kernels.families.generated.reduction_chain`).
Band of cost against program: 2 % from 200 elements per core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.activation_slopes import cycles_of_kept
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.chains import chain_program, ops_of
from wse_sim.kernels.blocks.elements import chain, chain_work
from wse_sim.kernels.blocks.probes import ELEMENTS, SIDE, elements_probe
from wse_sim.kernels.contract.equations import (
    BYTES_PER_WAVELET,
    SPECIAL_FUNCTIONS,
    bytes_of,
    ceil_div,
    has_room,
    largest_of,
    per_core,
    pointwise,
    row_allreduce,
    words,
)
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Flow,
    How,
    Lay,
    Link,
    Probe,
    ProgramOptions,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import WordAttributes, attribute, sizes, spaced
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.generated.reduction_chain import REDUCED, folded_program

STORES = 2
"""Rows of cores, of every stream, that store an operand which waits for another, besides those that deal operands out."""
LEAST_OF_LAP = 16
"""Elements of a core in one of several laps: with fewer, whole words and starts of instructions cost more than a lap gains."""
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "var", "logsumexp", "argmax"})


@dataclass(frozen=True)
class GeneratedAttributes(WordAttributes):
    """Attributes of a generated chain: comma-separated operators, number of operands."""

    ops: str = attribute("", "operators, comma-separated, in order; sum, mean, amax or amin may end it")
    inputs: int = attribute(1, "operands", at_least=1)
    stored: bool = attribute(
        False,
        "in words, and an operand that comes early waits in stores; operands share the link to the first core",
    )
    trains: bool = attribute(
        False,
        "stored, in training: slopes are made on the way forward, and gradients replace values in memory",
    )
    numbers: str = attribute(
        "", "in training, positions of the operators that take a number, comma-separated"
    )
    laps: int = attribute(
        1, "in training, parts of a sample that go around all cores one after the other, at most", at_least=1
    )


class Generated(OnElements):
    """The family of generated kernels."""

    name = "generated"
    dims = sizes(elements="elements of the result of the chain")
    more_dims = sizes(rows="rows of a reduction at the end of the chain", cols="elements of such a row")
    lies = "elements over all cores; a reduction also along the row"
    programs = "forward and backward; one reduction (sum, mean, amax, amin) at the end"
    bands = "1 %; reductions 5 %"
    attributes = GeneratedAttributes
    color = "#f0f0f0"

    def flow(self, dims: Dims, attrs: Attrs = NONE) -> Flow:
        """Row by row; with whole words a core has its part of a sample, or of a lap of it, at once, which waits for a
        special function."""
        stated = GeneratedAttributes.of(attrs)
        is_long = stated.in_words and not SPECIAL_FUNCTIONS.isdisjoint(stated.ops.split(","))
        return Flow(rows=stated.laps if is_long else dims.get("rows", 0), parallel=is_long)

    def parts_of_core(self, dims: Dims, tiling: Tiling, attrs: Attrs = NONE) -> int:
        """Return the laps of a core, with the fewest bundles that are stated."""
        stated = GeneratedAttributes.of(attrs)
        count = 1 if stated.bundles is None else max(1, stated.bundles.least)
        size, rows = largest_of(dims["elements"], count, stated.bundles), max(1, int(tiling.rows) // count)
        return int(laps_of(stated.laps, size, rows * tiling.cols))

    def link(self, attrs: Attrs = NONE) -> Link:
        """Return the operators as a chain."""
        stated = GeneratedAttributes.of(attrs)
        return Link(stated.ops, stated.inputs)

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """With whole words, operands enter at separate cores. Words of a waiting operand travel between stores on two
        colors."""
        found = super().lay(dims, attrs)
        return replace(found, more_colors=1) if GeneratedAttributes.of(attrs).stored else found

    def store_bytes(self, dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs = NONE) -> Size:
        """Return the bytes of a store of a waiting operand: two samples, of the part that its stream has. The more rows, the
        more streams."""
        stated = GeneratedAttributes.of(attrs)
        if not stated.stored:
            return 0
        streams = np.clip(tiling.rows // (stated.inputs + STORES), 1, max(1, stated.most_bundles))
        return 2 * bytes_of("fp16") * dims["elements"] / streams

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the chain's vector instructions, special elements and all-reduces."""
        phase, dtype, attrs = self.asked(tiling, how)
        ops = [op for op in GeneratedAttributes.of(attrs).ops.split(",") if op]
        issue, special, instructions = chain_work(ops, phase, dtype, wafer)
        stated = GeneratedAttributes.of(attrs)
        bundles = stated.bundles
        cost = pointwise(
            dims["elements"],
            tiling,
            wafer,
            dtype=dtype,
            issue=issue,
            special=special,
            instructions=max(1, instructions),
            inputs=stated.inputs,
            bundles=bundles._replace(stores=STORES) if bundles and stated.stored else bundles,
        )
        if stated.trains and stated.in_words and tiling.mapping == "stationary":
            cost = _trained_cost(ops, dims["elements"], tiling, wafer, phase, dtype, stated)
        elif stated.stored and stated.in_words and tiling.mapping == "stationary":
            # Operands that share a link have a control word each.
            turns = wafer.wavelet_cycles * stated.inputs * (cost.stalled_input > 0)
            cost = replace(cost, stalled_input=cost.stalled_input + turns)
        reductions = sum(op in REDUCTIONS for op in ops)
        if not reductions:
            return cost
        rows = ceil_div(max(1, dims.get("rows", 1)), tiling.rows)
        each = Cost(startup=rows * wafer.vector_start_loaded_cycles)
        # The backward pass multicasts the gradients of the rows: half of an all-reduce.
        fraction = 1.0 if phase is Phase.FORWARD else 0.5
        return cost + reductions * (fraction * row_allreduce(rows, tiling.cols, wafer) + each)

    def compute(self, *operands: Array, ops: str = "", dtype: str = "fp32", parts: int = 1) -> Array:
        """Apply the chain of operators; reductions run over the last dimension and keep it with length 1."""
        return chain(operands, ops, dtype, parts)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of the chain on every core, which may end with a reduction over rows of the
        tensor."""
        ops = ops_of(GeneratedAttributes.of(options.get("attrs")).ops)
        n = int(per_core(dims["elements"], tiling))
        if ops and ops[-1] in REDUCED:
            rows = int(ceil_div(max(1, dims.get("rows", 1)), tiling.rows))
            return folded_program(ops, tiling, n, rows, wafer, **options)
        return chain_program(self.name, ops, tiling, n, wafer, **options)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on the elements of one core, or, with a reduction, of a short row of cores."""
        phase, dtype, attrs = asked(how)
        ops = [op for op in GeneratedAttributes.of(attrs).ops.split(",") if op]
        if not any(op in REDUCTIONS for op in ops):
            return elements_probe(self, dims, tiling, wafer, how)
        n, cost = per_core(dims["elements"], tiling), self.cost(dims, tiling, wafer, **how)
        rows = int(ceil_div(max(1, dims.get("rows", 1)), tiling.rows))
        each = max(1, min(int(n), ELEMENTS) // rows)
        row = {"elements": SIDE * rows * each, "rows": rows}
        return (
            Probe(
                part="elements and reduction",
                family=self.name,
                dims=row,
                tiling=Tiling(1, SIDE, "streamed"),
                step="",
                start=1,
                cost=replace(cost, idle=0.0),
                tile=f"{each} elements of {rows} rows",
                dtype=dtype,
                phase=phase,
                attrs=dict(attrs),
            ),
        )


def laps_of(most: int, elements: Size, cores: Size) -> Size:
    """Return the laps in which `elements` go around the cores: the largest divisor of `most` that leaves enough to each.

    Laps let the first results leave, and the last ones follow the last operands, after a part of a core's time.

    >>> int(laps_of(4, 6400, 100)), int(laps_of(4, 640, 100))
    (4, 1)
    """
    found = np.ones(np.broadcast(elements, cores).shape, np.int64)
    for laps in range(2, most + 1):
        if most % laps == 0:
            found = np.where(elements >= LEAST_OF_LAP * laps * cores, np.int64(laps), found)
    return found


def _trained_cost(
    ops: Sequence[str],
    elements: Size,
    tiling: Tiling,
    wafer: Wafer,
    phase: Phase,
    dtype: str,
    stated: GeneratedAttributes,
) -> Cost:
    """Return the cost of one pass in training, in the number of bands of rows that is fastest: each has one bundle of
    the words of every token.

    Words of all operands, or of their gradients in the backward pass, share one link, with a control word after each; a
    core next to the region sums the gradients of the readers.
    """
    pair, bundles = BYTES_PER_WAVELET // bytes_of(dtype), stated.bundles
    numbers = {int(place) for place in stated.numbers.split(",") if place}
    found: Cost | None = None
    for count in spaced(range(1, (bundles.most if bundles is not None else 1) + 1)):
        size, rows = largest_of(elements, count, bundles), np.maximum(1, tiling.rows // count)
        laps = laps_of(stated.laps, size, rows * tiling.cols)
        n = pair * ceil_div(ceil_div(size / laps, rows * tiling.cols), pair)
        work = laps * cycles_of_kept(ops, phase, n, wafer, numbers)
        ramp = laps * (stated.inputs + 1) * words(n, dtype)
        streams = stated.inputs if phase is Phase.FORWARD else max(stated.inputs, stated.readers)
        entry = wafer.wavelet_cycles * streams * (words(size, dtype) + laps)
        is_possible = (count == 1) | (tiling.rows >= count * stated.inputs)
        enough = bundles is None or count >= bundles.least
        is_possible = np.logical_and(is_possible & enough, has_room(laps * n, bundles, wafer))
        late = np.where(is_possible, np.maximum(0.0, entry - work - ramp), np.inf)
        cells = ceil_div(size / laps, n)
        turns = 2 * (ceil_div(cells, rows) - 1)  # down a column, up the next one
        # Words go along all cores of a band, and results come back.
        idle = 2.0 * (wafer.hop_cycles * cells + wafer.turn_cycles * turns)
        cost = Cost(ramp=ramp, compute=work, stalled_input=late, idle=idle)
        found = cost if found is None else found.or_faster(cost)
    assert found is not None
    return found


FAMILY = register(Generated())
