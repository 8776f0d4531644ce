"""Families for tests: the program takes a known multiple of the formula."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Case, Cost, Family, Footprint, Probe, Tiling
from wse_sim.kernels.contract.registry import REGISTRY, load_families

SLOWER = 3  # cycles of the program per cycle of the formula
ONCE = 40  # cycles that the program takes once, whatever its size


class Slow(Family):
    """One cycle per element by formula, three on the fabric; the elements are the product of all dimensions."""

    dims = ("elements",)

    def __init__(self, name: str = "slow") -> None:
        self.name = name

    def footprint(self, dims: Any, tiling: Tiling, wafer: Any, **how: Any) -> Footprint:
        """Nothing."""
        return Footprint()

    def cost(self, dims: Any, tiling: Tiling, wafer: Any, **how: Any) -> Cost:
        """Return the elements per core."""
        return Cost(compute=1.0 * ceil_div(prod(dims.values()), tiling.rows * tiling.cols))

    def program(self, dims: Any, tiling: Tiling, wafer: Any, **options: Any) -> Case:
        """Make a core that is busy."""
        b = new_builder(1, 1, wafer)
        core = b.core_class("core")
        core.busy(ONCE + SLOWER * int(dims["elements"]))
        b.place(core, None)
        return Case(b.build(), b.config, {}, {})

    def probes(self, dims: Any, tiling: Tiling, wafer: Any, **how: Any) -> tuple[Probe, ...]:
        """Step its elements."""
        return (self.probe(self.cost(dims, tiling, wafer)),)

    def probe(self, cost: Cost, step: str = "elements", start: int = 10) -> Probe:
        """Return a probe that represents `cost`."""
        dims = {} if step else {"elements": start}
        return Probe(
            "work", self.name, dims, Tiling(1, 1, "streamed"), step, start, cost, f"{start} elements"
        )


def register_slow(monkeypatch: pytest.MonkeyPatch, name: str = "slow") -> Slow:
    """Register the family for one test."""
    load_families()
    found = Slow(name)
    monkeypatch.setitem(REGISTRY, name, found)
    return found
