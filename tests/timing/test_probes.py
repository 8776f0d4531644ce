"""Probes: costs that occur once cancel, and repeating costs are compared."""

from __future__ import annotations

import pytest

from tests.timing.families import ONCE, SLOWER, register_slow
from wse_sim.errors import KernelError
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.probes import pointwise_probe, product_probe
from wse_sim.kernels.blocks.products import TiledProduct
from wse_sim.kernels.contract.family import Cost, Tiling
from wse_sim.kernels.contract.registry import family
from wse_sim.timing.probes import Measured, measure

WAFER = load_wafer("wse2")


def test_what_happens_once_cancels_in_a_stepped_probe(monkeypatch):
    """3 n + 40 cycles on the fabric against n by formula: the steady ratio is 3, the total ratio 3 + 40 / n."""
    slow = register_slow(monkeypatch)
    stepped = measure(slow.probe(Cost(compute=1.0)), WAFER)
    assert stepped.ratio == pytest.approx(SLOWER, abs=1e-9)
    assert "starts and tasks" in stepped.why
    whole = measure(slow.probe(Cost(compute=1.0), step="", start=20), WAFER)
    assert whole.ratio == pytest.approx(SLOWER + ONCE / 20, rel=0.02)


def test_a_formula_that_does_not_grow_is_one_sentence(monkeypatch):
    """A part whose formula ignores the stepped dimension cannot be measured."""
    slow = register_slow(monkeypatch)
    monkeypatch.setattr(slow, "cost", lambda dims, tiling, wafer, **how: Cost(compute=7.0))
    with pytest.raises(KernelError, match="does not grow with elements"):
        measure(slow.probe(Cost(compute=1.0)), WAFER)


def test_where_the_difference_comes_from():
    """Two percent counts as equal; waiting, issue and a formula above the program are distinguished."""
    assert Measured(100, 101, 100).why == "as the formula"
    assert "waits for words" in Measured(100, 150, 100).why
    assert "starts and tasks" in Measured(100, 150, 149).why
    assert "formula counts more" in Measured(100, 80, 80).why
    assert Measured(1, 1, 0, "no program").why == "no program"
    assert Measured(1, 5, 0, "no program").ratio == 1.0


def test_the_probe_of_a_product_holds_the_tile_of_the_plan():
    """960 features over 48 columns of a lane: 20 words; 3000 tokens over 2 lanes of 50 rows: 30 tokens."""
    tiling = Tiling(50, 96, "streamed", lanes=2)
    probe = product_probe("product", TiledProduct(3000, 960, 77, tiling, WAFER))
    assert probe.tile == "20 words on 30 tokens"
    # 77 outputs, each 20 words on 30 tokens at two multiply-accumulates per cycle, and 30 words of sums.
    assert probe.cost.total == 77 * (20 * 15 + 30)
    found = measure(probe, WAFER)
    assert found.model_cycles == 20 * 15 + 30
    # A data task is picked once per output: 2 cycles that the formula leaves out.
    assert found.fabric_cycles == pytest.approx(found.model_cycles, abs=3)


def test_a_slow_core_is_slow_by_formula_and_on_the_fabric():
    """With half the multiply-accumulates per cycle both sides double the arithmetic, and the ratio stays near one."""
    slow = WAFER.derive(fma_mixed_per_cycle=1.0)
    tiling = Tiling(50, 96, "streamed", lanes=2)
    probe = product_probe("product", TiledProduct(3000, 960, 77, tiling, slow))
    found = measure(probe, slow)
    assert found.model_cycles == 20 * 30 + 30
    assert found.ratio == pytest.approx(1.0, abs=0.02)


def test_few_elements_run_in_whole_and_many_are_stepped():
    """300 elements on a core run completely, starts included; of 10,000 the steady part runs."""
    tiling = Tiling(10, 10, "stationary")
    few, many = (
        pointwise_probe(
            "elements",
            "elementwise",
            100 * count,
            tiling,
            family("elementwise").cost({"elements": 100 * count}, tiling, WAFER, attrs={"ops": "add"}),
            dtype="fp16",
            attrs={"ops": "add"},
        )
        for count in (300, 10_000)
    )
    assert (few.step, many.step) == ("", "elements")
    for probe in (few, many):
        assert measure(probe, WAFER).ratio == pytest.approx(1.0, abs=0.03)
    # The words of the operands over the west edge are no part of either.
    assert few.cost.fabric == many.cost.fabric == 0


def test_operands_that_arrive_are_measured_on_their_link():
    """100 elements of two fp16 operands per core on 10 cores in a row are 1000 words on the link, less the busy time."""
    tiling, dims = Tiling(10, 10, "stationary"), {"elements": 10_000}
    how = {"dtype": "fp16", "attrs": {"ops": "add", "inputs": 2}}
    cost = family("elementwise").cost(dims, tiling, WAFER, **how)
    own, arrival = family("elementwise").probes(dims, tiling, WAFER, **how)
    assert arrival.cost.total == cost.fabric == 1000 - own.cost.total
    assert measure(arrival, WAFER).ratio == pytest.approx(1.0, abs=0.01)
    # A kernel on the whole wafer finds its operands in place.
    assert len(family("elementwise").probes(dims, Tiling(10, 10, "streamed"), WAFER, **how)) == 1
