"""Probes of attention: its products for a few items on a few cores, and its softmax with all scores of a core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wse_sim.graph import Attr, Phase
from wse_sim.kernels.blocks.probes import ELEMENTS, SIDE, steady
from wse_sim.kernels.contract.equations import ceil_div, per_core
from wse_sim.kernels.contract.family import Attrs, Cost, Dims, Probe, Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes

ITEMS = 2 * SIDE  # items of the first run: two per core of a line


@dataclass(frozen=True)
class HeadTile:
    """Cores along a head's features (`over`); per core `features`, and `others`: stationary queries or
    keys."""

    mapping: str
    over: int
    features: int
    others: int

    def dims(self, lines: int, items: int) -> dict[str, int]:
        """Return the dimensions of one head on `lines` lines of `over` cores; with 0 items, without the
        stepped dimension."""
        at_rest, circulating = ("q", "kv") if self.mapping == "streamed" else ("kv", "q")
        sizes = {
            "b": 1,
            "heads": 1,
            "kv_heads": 1,
            "d": self.over * self.features,
            at_rest: lines * self.others,
        }
        return sizes | ({circulating: items} if items else {})

    def tiling(self, lines: int) -> Tiling:
        """Return the tiling of one head on `lines` lines."""
        streamed = self.mapping == "streamed"
        return Tiling(lines, self.over, "streamed") if streamed else Tiling(self.over, lines, "stationary")

    @property
    def step(self) -> str:
        """The dimension of the items."""
        return "kv" if self.mapping == "streamed" else "q"


def tile_of(dims: Dims, tiling: Tiling) -> HeadTile:
    """Return the tile of a core in a plan, with its head narrowed to SIDE cores."""
    heads, wide = int(dims["heads"]), int(dims["heads"]) * int(dims["d"])
    if tiling.mapping == "streamed":
        lane = int(tiling.cols) // int(tiling.lanes)
        t = int(ceil_div(dims["b"] * dims["q"], tiling.lanes * tiling.rows))
        return HeadTile("streamed", min(SIDE, int(ceil_div(lane, heads))), int(ceil_div(wide, lane)), t)
    n = int(ceil_div(dims["kv"], tiling.cols))
    return HeadTile(
        "stationary", min(SIDE, int(ceil_div(tiling.rows, heads))), int(ceil_div(wide, tiling.rows)), n
    )


def head_probes(
    parts: Mapping[str, Cost], dims: Dims, tiling: Tiling, phase: Phase, attrs: Attrs
) -> tuple[Probe, ...]:
    """Return probes of the `parts` of a kernel; "scores again" is the forward product that a backward pass
    repeats."""
    tile = tile_of(dims, tiling)
    lines = min(SIDE, int(tiling.rows if tiling.mapping == "streamed" else tiling.cols))
    stated = AttentionAttributes.of(attrs)
    kept: dict[str, Attr] = {"accumulate": stated.accumulate, "dropout": stated.dropout}
    found = []
    for part, cost in parts.items():
        if part == "softmax":
            found.append(_softmax_probe(tile, cost, dims, tiling, phase, kept))
            continue
        found.append(
            Probe(
                part=part,
                family="attention",
                dims=tile.dims(lines, 0),
                tiling=tile.tiling(lines),
                step=tile.step,
                start=ITEMS,
                cost=steady(cost),
                tile=f"{tile.features} features, {tile.others} {'queries' if tile.step == 'kv' else 'keys'}",
                phase=Phase.FORWARD if part == "scores again" else phase,
                attrs={**kept, "part": part.split()[0]},
            )
        )
    return tuple(found)


def _softmax_probe(
    tile: HeadTile, cost: Cost, dims: Dims, tiling: Tiling, phase: Phase, kept: Mapping[str, Any]
) -> Probe:
    """Return a probe on a line of cores, each with a core's part of the scores: keys or queries times items."""
    count = int(per_core(dims["b"] * dims["heads"] * dims["q"] * dims["kv"], tiling))
    narrow = HeadTile(tile.mapping, tile.over, 1, tile.others)
    # Items are owned along the head's cores (streamed: along the row of the statistics).
    whole = count <= ELEMENTS
    each = int(ceil_div(count if whole else ELEMENTS // 2, tile.others))
    lines = 1 if tile.mapping == "streamed" else min(SIDE, int(tiling.cols))
    items = each * narrow.over
    return Probe(
        part="softmax",
        family="attention",
        dims=narrow.dims(lines, items if whole else 0),
        tiling=narrow.tiling(lines),
        step="" if whole else tile.step,
        start=1 if whole else items,
        cost=cost,
        tile=f"{count} scores",
        phase=phase,
        attrs={**kept, "part": "softmax"},
    )
