"""Probes of the shapes that many families share: matrix products, and work spread over all cores.

A product is measured on SIDE x SIDE cores with the tile of the plan, for a few rounds; elementwise work needs
a single core, which runs all of its elements if they are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wse_sim.graph import Attr, Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.products import TiledProduct
from wse_sim.kernels.contract.equations import fill_cycles, per_core
from wse_sim.kernels.contract.family import (
    NONE,
    Asked,
    Attrs,
    Cost,
    Dims,
    Family,
    How,
    Probe,
    Size,
    Tiling,
    asked,
)

SIDE = 4  # cores per side of the probe of a product
ROUNDS = 6  # rounds of its first run
PIECE = 64  # elements of a row of operands that one core takes
ELEMENTS = 2048  # elements per core up to which all of them are run


def steady(cost: Cost) -> Cost:
    """Return the cost without fill: the part that a probe of a product measures."""
    return replace(cost, idle=0.0 * cost.total)


def sized_probe(
    part: str, family: str, dims: Mapping[str, int], step: str, most: int, cost: Cost, tile: str, how: Asked
) -> Probe:
    """Return a probe on one core with its size `step` complete up to `most`, else stepped: the difference of two runs has no
    start. `cost` is that of the part on the whole rectangle."""
    whole = dims[step] <= most
    return Probe(
        part=part,
        family=family,
        dims=dims if whole else {name: size for name, size in dims.items() if name != step},
        tiling=Tiling(1, 1, "streamed"),
        step="" if whole else step,
        start=1 if whole else most // 2,
        cost=Cost(compute=cost.compute, special=cost.special, startup=cost.startup if whole else 0.0),
        tile=tile,
        dtype=how.dtype,
        phase=how.phase,
        attrs=dict(how.attrs),
    )


def pointwise_probe(
    part: str,
    family: str,
    elements: Size,
    tiling: Tiling,
    cost: Cost,
    *,
    dtype: str,
    phase: Phase = Phase.FORWARD,
    attrs: Attrs = NONE,
    most: int = ELEMENTS,
) -> Probe:
    """Return a probe on one core with its part of `elements`; operands are already in place, so waiting is
    left out.

    `cost` is the kernel's (or the part's) cost on the whole rectangle; a run has at most `most` elements.
    """
    count = int(per_core(elements, tiling))
    how = Asked(phase, dtype, attrs)
    return sized_probe(part, family, {"elements": count}, "elements", most, cost, f"{count} elements", how)


def elements_probe(found: Family, dims: Dims, tiling: Tiling, wafer: Wafer, how: How) -> tuple[Probe, ...]:
    """Return the probe of a family whose only dimension is `elements` (or whose cost depends only on its
    elements)."""
    _, dtype, attrs = asked(how)
    cost = found.cost(dims, tiling, wafer, **how)
    # A program holds two fp32 buffers per operator at most, and two more.
    link = found.link(attrs)
    operators = link.ops.count(",") + 1 if link is not None else 1
    most = min(ELEMENTS, wafer.sram_usable_bytes // (4 * (2 * operators + 2)) - 8)
    stated = asked(how)._asdict()
    own = pointwise_probe("elements", found.name, dims["elements"], tiling, cost, **stated, most=most)
    return (own, *arrival_probes(cost, dtype))


def arrival_probes(cost: Cost, dtype: str) -> tuple[Probe, ...]:
    """Return the probe for the wait of a region for operands that enter over the west edge, one link per row
    of cores.

    It measures an embedding, which sends words the same way: a feeder sends a row of SIDE cores their pieces.
    """
    if float(cost.fabric) <= 0:
        return ()
    dims = {"cols": SIDE * PIECE, "vocab": PIECE}
    small, wait = Tiling(1, SIDE, "streamed"), Cost(fabric=cost.fabric)
    return (Probe("operands", "embedding", dims, small, "rows", SIDE, wait, "one link per row", dtype),)


def product_probe(part: str, product: TiledProduct, times: float = 1.0) -> Probe:
    """Return the probe of a product of streamed or stationary weights, laid out as by `gemm` and run `times`
    times; without fill."""
    tiling, wafer, gradient = product.tiling, product.wafer, product.is_gradient
    cost = times * steady(product.cost())
    f, t = map(int, product.tile)
    if tiling.mapping == "streamed":
        dims = {"m": f * SIDE, "k": t * SIDE} if gradient else {"m": t * SIDE, "k": f * SIDE}
        step, tile = "n", f"{f} words on {t} tokens"
    else:
        dims = {"m" if gradient else "k": f * SIDE, "n": t * SIDE}
        step, tile = "k" if gradient else "m", f"{f} words on {t} outputs"
    small = Tiling(SIDE, SIDE, tiling.mapping, options={"orientation": "kn"})
    # Feeders and collectors store the words of all rounds in fp32.
    rounds = max(1, min(ROUNDS, wafer.sram_usable_bytes // (2 * 4 * max(f, t))))
    stated = product.stated
    kept: dict[str, Attr] = {"accumulate": stated.accumulate or "fp32"}
    if stated.density < 1.0 and not gradient:
        kept["density"] = stated.density
    return Probe(part, "gemm", dims, small, step, rounds, cost, tile, product.dtype, product.phase, kept)


def fill_probes(idle_cycles: float, tiling: Tiling, wafer: Wafer) -> tuple[Probe, ...]:
    """Return probes for the fill of a whole rectangle: the first word's travel across it, and the chains
    along a lane.

    The travel is one word multicast along a row and down a column; the rest of `idle_cycles` is words that
    cores receive, add to and send, one after another: a chain of as many cores as a lane has columns.
    """
    rows, cols, lane = int(tiling.rows), int(tiling.cols), int(tiling.cols // tiling.lanes)
    way = min(idle_cycles, float(fill_cycles(rows, cols, wafer)))
    along = way * (cols - 1) / max(1, rows + cols - 2)
    line, column = Tiling(1, cols, "grid"), Tiling(rows, 1, "grid", options={"axis": "both"})
    parts = (
        ("way along a row", "broadcast", line, along, cols),
        ("way down a column", "broadcast", column, way - along, rows),
        ("chain", "line_reduce", Tiling(1, lane, "grid", "chain"), idle_cycles - way, lane),
    )
    return tuple(
        Probe(part, family, {"words": 1}, small, "", 1, Cost(idle=cycles), f"1 word, {cores} cores", "fp32")
        for part, family, small, cycles, cores in parts
        if cycles > 0 and cores > 1
    )
