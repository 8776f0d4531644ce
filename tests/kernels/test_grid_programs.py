"""Programs of products on a grid: shifting operands on folded and plain rings; relayed shifts of tiles."""

from __future__ import annotations

import pytest

from wse_sim.bench.command import measure
from wse_sim.errors import KernelError
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.blocks.ring import ring
from wse_sim.kernels.contract.testing import check_faces

WSE2 = load_wafer("wse2")
SHIFTED = {"skew": False}


@pytest.mark.parametrize("cores", [2, 3, 8, 9])
def test_neighbours_on_a_folded_ring_are_two_links_apart_at_most(cores: int) -> None:
    """Every position occurs once, and the wrap-around is included."""
    order = ring(cores)
    assert sorted(order) == list(range(cores))
    assert max(abs(a - b) for a, b in zip(order, [*order[1:], order[0]], strict=True)) <= 2


@pytest.mark.parametrize("algorithm", ["mesh", "cannon"])
@pytest.mark.parametrize(("m", "k", "n"), [(14, 12, 8), (4, 5, 4), (5, 3, 7)])
def test_shifting_products_take_what_the_cost_says(algorithm: str, m: int, k: int, n: int) -> None:
    """Shifts of fp16 take a quarter cycle of issue per element: 1 % for tiles from 4 to 14, odd ones too."""
    side = 5
    dims = {"m": side * m, "k": side * k, "n": side * n}
    tiling = Tiling(side, side, "grid", algorithm, options=SHIFTED)
    check_faces(family("gemm"), dims, tiling, WSE2, band=0.01, dtype="fp16")


@pytest.mark.slow
def test_cannon_pays_the_wrap_around_once_per_axis() -> None:
    """Steps are shorter than the route across the grid: Cannon is later than MeshGEMM by that difference, once per
    axis.

    S = 20, L = 5, tiles of 1: a step is 20 + 5 + 2.1 + 1 and 4 moves of one cycle, 32.1; the far tile arrives
    20 + 47 + 5 + 1 = 73 after the step before began: 40.9 late, twice.
    """
    wafer = WSE2.model_copy(update={"step_cycles": 20, "loop_cycles": 5})
    side, cycles = 48, {}
    for algorithm in ("mesh", "cannon"):
        tiling = Tiling(side, side, "grid", algorithm, options=SHIFTED)
        dims = dict.fromkeys("mkn", side)
        case = family("gemm").program(dims, tiling, wafer, dtype="fp16")
        cycles[algorithm] = run_program(case.program, case.config, functional=False).cycles
        priced = family("gemm").cost(dims, tiling, wafer, dtype="fp16")
        assert float(priced.fabric) == pytest.approx(81.8 if algorithm == "cannon" else 0.0)
    assert cycles["cannon"] - cycles["mesh"] == pytest.approx(81.8, abs=2)


@pytest.mark.parametrize("wafer", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("cols", "distance", "tile"), [(5, 1, 1), (12, 4, 7), (12, 8, 40), (9, 8, 3), (24, 5, 100)]
)
def test_a_relayed_shift_takes_what_the_cost_says(wafer: str, cols: int, distance: int, tile: int) -> None:
    """A shift alone, one of many, shorter and longer than the square of senders; on both generations."""
    dims = {"tile": tile, "distance": distance}
    check_faces(family("shift"), dims, Tiling(2, cols, "grid"), load_wafer(wafer), band=0.01, dtype="fp16")


def test_a_lone_tile_pays_every_relay_and_others_wait_behind_each_other() -> None:
    """On WSE-2 a relay takes hop 1, ramps 5, the tile 3, a call of 30 and two starts of 21; a core is busy for 175 + 4.

    One tile over 8 columns: 56 + ramps 5 + 1, hop 1 + 2, 7 relays of 81, then 30 + 56 + ramps 5 + 1 + 8 hops back.  Four
    tiles: three times 179 - 81 more.
    """
    lone = family("shift").cost({"tile": 3, "distance": 8}, Tiling(1, 9, "grid"), WSE2).total
    assert float(lone) == (56 + 6 + 3) + 7 * 81 + (30 + 56 + 6 + 8)
    four = family("shift").cost({"tile": 3, "distance": 8}, Tiling(1, 12, "grid"), WSE2).total
    assert float(four) == float(lone) + 3 * 98


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("gemv", {"m": 64, "n": 64, "rows": 64, "cols": 2, "groups": 4}),
        ("gemv", {"m": 64, "n": 16, "rows": 64, "cols": 2, "groups": 8}),
        ("reduce2d", {"words": 4, "rows": 50, "cols": 6}),
        ("allreduce2d", {"words": 4, "rows": 50, "cols": 6}),
        ("broadcast", {"words": 8, "rows": 50, "cols": 4, "axis": "both"}),
    ],
)
def test_edges_of_dies_slow_formula_and_program_alike(name: str, params: dict[str, object]) -> None:
    """On a wafer with dies of 10 rows both are longer by the same amount, and by nothing without the constant."""
    small = load_wafer("wse3").model_copy(update={"rows": 70, "program_rows": 70, "rows_per_die": 10})
    assert small.die_edges(64) == (10, 20, 30, 40, 50, 60)
    even = small.model_copy(update={"die_crossing_cycles": 0})
    more = [
        measure(name, params, small, timing=timing).value - measure(name, params, even, timing=timing).value
        for timing in ("model", "fabric")
    ]
    assert more[0] == pytest.approx(more[1], rel=0.03)  # whole cycles in programs
    assert more[1] >= 4 * small.die_crossing_cycles


def test_a_shift_beyond_the_edge_is_refused() -> None:
    """A distance of all columns leaves no sender."""
    with pytest.raises(KernelError, match="from 1 to 7"):
        family("shift").cost({"tile": 3, "distance": 8}, Tiling(1, 8, "grid"), WSE2)
