"""Tables of shelves are computed only as far as needed, and equal the complete table."""

from __future__ import annotations

import numpy as np
import pytest

from tests.handmade import transformer
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.shelf_kernels import NEVER
from wse_sim.compiler.shelf_tables import ShelfTable
from wse_sim.compiler.sizing import Shapes, Sizer
from wse_sim.hardware import load_wafer

HEIGHTS, WIDTHS = np.arange(2, 41, 3), np.arange(1, 60, 2)


@pytest.fixture(scope="module")
def sizer() -> Sizer:
    wafer = load_wafer("wse2")
    return Sizer(transformer(), wafer, Prices(wafer, {"training": True, "optimizer": "sgd"}))


def whole(sizer: Sizer, kind: int, pace: float) -> np.ndarray:
    """Compute the least widths from every rectangle: the first column of each height within the pace and the SRAM."""
    group, cores = sizer.groups[kind], np.outer(HEIGHTS, WIDTHS)
    prices = sizer.shape_prices(group, Shapes.grid(HEIGHTS, WIDTHS))
    held = prices.memory.reshape(cores.shape) + sizer.held_bytes(group) / cores
    keeps = (held <= sizer.wafer.sram_usable_bytes) & (prices.time(None).reshape(cores.shape) <= pace)
    return np.where(keeps.any(axis=1), WIDTHS[keeps.argmax(axis=1)], NEVER)


def test_asked_in_any_order_it_answers_as_the_whole_table(sizer):
    """Slow paces, fast ones, impossible ones, and requests after its memory was freed."""
    table = ShelfTable(sizer, sizer.groups, HEIGHTS, WIDTHS, WIDTHS, {})
    slow = sizer.shape_prices(sizer.groups[0], Shapes.one(4, 4)).time(None)[0]
    fractions = np.random.default_rng(0).permutation([0.001, 0.05, 0.2, 0.6, 1.0, 3.0, 1e9])
    for number, fraction in enumerate(fractions):
        found = table.least_widths(np.full(len(sizer.groups), slow * fraction))
        for kind in range(len(sizer.groups)):
            assert np.array_equal(found[kind], whole(sizer, kind, slow * fraction))
        if number == 3:
            table.forget()
    row, col = 5, 3
    asked = table.priced(0, int(HEIGHTS[row]), int(WIDTHS[col]))
    assert asked == sizer.shape_prices(sizer.groups[0], Shapes.one(HEIGHTS[row], WIDTHS[col])).at(0)
    assert table.priced(0, 3, 1) is None  # not a height of the table


def test_a_stage_without_a_place_is_never_priced(sizer):
    """A pinned stage is outside the table: its row has no value, whatever the pace."""
    table = ShelfTable(sizer, [None, *sizer.groups[1:]], HEIGHTS, WIDTHS, WIDTHS, tiles := {})
    assert (table.least_widths(np.full(len(sizer.groups), 1e12))[0] == NEVER).all()
    assert all(kind for kind, _, _ in tiles)
