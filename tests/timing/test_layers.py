"""Layers on a grid: the parts make up the layer, and a run at its own size takes the program's cycles."""

from __future__ import annotations

import pytest

from wse_sim import api
from wse_sim.hardware import load_wafer
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.contract.registry import family
from wse_sim.modes.base import Layer, Part
from wse_sim.modes.generation.grid import Sides
from wse_sim.modes.generation.layer import LayerShape, decode_layer_cycles, prefill_layer_cycles
from wse_sim.modes.generation.layer_parts import decode_parts, joined_layer, joined_parts, prefill_parts
from wse_sim.timing import Timed
from wse_sim.timing.layers import time_layer
from wse_sim.timing.probes import measure

WAFER = load_wafer("wse2")
SHAPE, CONTEXT = LayerShape(1024, 2816), 2048


@pytest.mark.parametrize("grid", [64, 60, (48, 80), (80, 48)])
def test_the_parts_of_a_decoded_layer_are_all_of_it(grid: Sides):
    """Nine products with their all-reduces, four statistics, exponentials, roots and starts are the complete layer."""
    cost = decode_layer_cycles(SHAPE, CONTEXT, grid, WAFER)
    parts = decode_parts(SHAPE, CONTEXT, grid, WAFER)
    assert sum(part.probe.cost.total for part in parts) == pytest.approx(cost.total)
    assert sum(part.runs for part in parts) == 9 + 4
    report = time_layer(Layer("decode", cost, parts), WAFER)
    assert report.measured_fraction == pytest.approx(1.0)
    assert report.model_only == ()
    assert report.factors["decode"] == pytest.approx(1.0, abs=0.12)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("grid", [64, 60, (48, 80)])
@pytest.mark.parametrize("tokens", [1, 3, 8, 32])
def test_the_parts_of_a_joined_layer_are_programs(grid: Sides, tokens: int):
    """Products of several vectors, statistics of as many words and scalar work are 99 % of the layer, and within 10 %
    of it.

    Three tokens take the matrix row by row, 32 weight by weight; what has no program is the way of shared special functions.
    """
    layer = joined_layer(SHAPE, tokens, grid, WAFER)
    report = time_layer(layer, WAFER)
    assert report.measured_fraction > 0.99
    assert len(report.model_only) == (tokens > 1)
    assert report.factors["chunk"] == pytest.approx(1.0, abs=0.10)
    assert sum(part.runs for part in layer.parts) == 9 + 4


def test_one_token_of_a_joined_layer_is_measured_as_decode():
    """The same probes of a context of one slot: scores and values apart or counted with the products."""
    joined, decoded = joined_parts(SHAPE, 1, 64, WAFER), decode_parts(SHAPE, 64, 64, WAFER)
    assert sum(p.probe.cost.total for p in joined) == pytest.approx(sum(p.probe.cost.total for p in decoded))


@pytest.mark.slow
def test_the_parts_of_prefill_leave_skew_and_short_sums():
    """Without the skew of six products and four row all-reduces the parts are the layer."""
    cost = prefill_layer_cycles(SHAPE, CONTEXT, 64, WAFER)
    parts = prefill_parts(SHAPE, CONTEXT, 64, WAFER)
    stated = sum(part.probe.cost.total for part in parts)
    report = time_layer(Layer("prefill", cost, parts, "no program"), WAFER)
    assert [row.why for row in report.model_only] == ["no program"]
    assert report.total_cycles == pytest.approx(cost.total)
    assert report.measured_fraction == pytest.approx(stated / cost.total)
    assert report.factors["prefill"] == pytest.approx(1.0, abs=0.05)


def test_a_run_of_the_parts_own_size_takes_the_cycles_of_the_program():
    """Three products of 512 x 64 numbers on 64 cores: three times the program, less what a layer does not spend."""
    tiling = Tiling(64, 1, "grid", options={"groups": 8})
    part = next(p for p in decode_parts(LayerShape(512, 512), 512, 64, WAFER) if p.probe.family == "gemv")
    assert part.probe.tiling == tiling
    assert part.runs == 9  # every tile of this layer is 8 x 8
    report = time_layer(Layer("decode", part.probe.cost, [part]), WAFER)
    once = measure(part.probe, WAFER).fabric_cycles - part.extra_cycles
    assert report.rows[0].fabric_cycles == pytest.approx(9 * once)
    # The program and its own closed form, which knows groups of unequal length, agree.
    form = family("gemv").cost({"m": 512, "n": 8}, tiling, WAFER, dtype="fp16").total
    assert once + part.extra_cycles == pytest.approx(form, rel=0.02)


@pytest.mark.slow
def test_a_part_that_stands_for_others_scales_their_formula():
    """Without runs of its own size the formula is kept in absolute terms and multiplied by the ratio."""
    part = prefill_parts(SHAPE, CONTEXT, 64, WAFER)[0]
    twice = Part(part.probe, 0)
    found = measure(part.probe, WAFER)
    report = time_layer(Layer("prefill", 2.0 * part.probe.cost, [twice], "half of it"), WAFER)
    assert report.factors["prefill"] == pytest.approx((found.ratio + 1.0) / 2.0)


@pytest.mark.slow
def test_generation_by_formulas_and_by_programs():
    """Tokens follow the cycles of a layer; the transfer between regions is unchanged."""
    timed = api.run_both(
        "llama3-8b", mode="generation", phase="inference", batch=1, seq=512, mode_options={"grid": 300}
    )
    assert isinstance(timed, Timed)
    assert timed.model.plan.grid == timed.fabric.plan.grid == 300
    slower, plan = timed.report.factors["decode"], timed.model.plan
    assert slower != 1.0
    rest = plan.latency_s - plan.layers * plan.layer_s  # ways between regions, embedding and head
    assert timed.fabric.step_s == pytest.approx(slower * plan.layers * plan.layer_s + rest)
    assert any(note.startswith("measured on the fabric") for note in timed.fabric.notes)
