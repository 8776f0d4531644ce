"""All draws in one pass give the figures of draws that are compiled and priced one by one, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.handmade import transformer
from wse_sim import api
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.weight_streaming import WeightStreaming, plan_draws
from wse_sim.uncertainty.draws import DrawnMachine, draws, ranged
from wse_sim.uncertainty.spread import plan_figures, plan_spread

SAMPLES = 12


def machines(plan):
    """Return the stated machine and draws of it."""
    wafer, cluster = plan.wafer, plan.cluster
    return [DrawnMachine(wafer, cluster), *draws(wafer, cluster, ranged(wafer, cluster), SAMPLES)]


def plan_of(graph, wafer=None, cluster=None, **options):
    found = api.compile(
        graph,
        mode="weight-streaming",
        wafer=wafer or load_wafer("wse2"),
        cluster=cluster or load_cluster(),
        **options,
    )
    assert not isinstance(found, api.Infeasible)
    return found


@pytest.mark.parametrize(
    ("training", "options"),
    [
        (True, {"batch": 64}),
        (False, {"batch": 64}),
        (True, {"batch": 64, "density": 0.25}),
        (True, {"batch": 64, "recompute": "attention"}),
        (True, {"batch": 64, "recompute": "full", "systems": 4}),
    ],
)
def test_one_pass_gives_the_figures_of_plans_that_are_made_one_by_one(training, options):
    """Every draw is compiled and priced again by the plain way: equal floats, not close ones."""
    plan = plan_of(transformer(layers=2, hidden=256, seq=64, training=training), **options)
    alone = plan_figures(plan)
    found = plan_spread(plan, SAMPLES)
    wanted = [dict(alone(machine)) for machine in machines(plan)]
    assert [dict(figures) for figures in (found.base, *found.drawn)] == wanted
    assert len({figures["samples_per_s"] for figures in wanted}) > SAMPLES // 2  # the draws do differ


def test_draws_that_the_plan_does_not_fit_and_draws_that_spill_are_told_apart():
    """On a wafer that is just large enough, with more reserved SRAM or more code the model spills, or does not fit."""
    graph = transformer(layers=2, hidden=256, seq=64, training=True)
    small = load_wafer("wse2").derive(
        rows=24, cols=24, program_rows=22, program_cols=22, io_channels_per_edge=4
    )
    seen = set()
    for sram in (44_000, 30_000, 20_000, 14_000, 12_000, 11_000, 10_000):
        wafer = small.derive(sram_bytes=sram)
        plan = api.compile(graph, mode="weight-streaming", wafer=wafer, cluster=load_cluster(), batch=64)
        if isinstance(plan, api.Infeasible):
            continue
        alone = plan_figures(plan)
        wanted = [dict(alone(machine)) for machine in machines(plan)]
        found = plan_spread(plan, SAMPLES)
        assert [dict(figures) for figures in (found.base, *found.drawn)] == wanted
        seen |= {"none" if not figures else "fits" for figures in wanted} | {
            "spills" if plan.spilled_bytes else ""
        }
    assert seen >= {"none", "fits", "spills"}


def test_a_form_that_takes_no_arrays_is_evaluated_draw_by_draw():
    """A formula branches on a drawn constant: the array raises, and single wafers are evaluated."""
    stated = load_wafer("wse2")
    wafers = [stated.model_copy(update={"exp_cycles": value}) for value in (40.0, 52.0, 60.0)]
    both = plan_draws.DrawnWafers.of(wafers)
    assert np.array_equal(both.together.exp_cycles, [40.0, 52.0, 60.0])
    assert both.together.clock_hz == stated.clock_hz
    branching = both.price(lambda wafer: {"cycles": 1.0 if wafer.exp_cycles < 50 else wafer.exp_cycles})
    assert branching["cycles"].tolist() == [1.0, 52.0, 60.0]


def test_a_derived_mode_with_prices_of_its_own_keeps_them():
    """The pass would not use its prices."""

    class Halved(WeightStreaming):
        name = "halved"

        def quick_figures(self, plan):
            return {"samples_per_s": super().quick_figures(plan)["samples_per_s"] / 2}

    plan = plan_of(transformer(layers=1, hidden=64, seq=16, training=False), batch=8)
    pairs = [(plan.wafer, plan.cluster)]
    assert Halved().drawn_figures(plan, pairs) is None
    assert WeightStreaming().drawn_figures(plan, pairs) == [WeightStreaming().quick_figures(plan)]


@pytest.mark.slow
@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("training", "options"),
    [(True, {"batch": 8}), (False, {"batch": 8}), (True, {"batch": 8, "replicas": 2, "recompute": "full"})],
)
def test_one_pass_gives_the_rates_of_pipelined_plans_that_are_priced_one_by_one(training, options):
    """The floats are equal, and the draws differ."""
    graph = transformer(layers=2, hidden=256, seq=64, training=training)
    plan = api.compile(graph, mode="pipelined", wafer=load_wafer("wse2"), cluster=load_cluster(), **options)
    assert not isinstance(plan, api.Infeasible)
    alone = plan_figures(plan)
    found = plan_spread(plan, SAMPLES)
    wanted = [dict(alone(machine)) for machine in machines(plan)]
    assert [dict(figures) for figures in (found.base, *found.drawn)] == wanted
    assert len({figures["samples_per_s"] for figures in wanted}) > SAMPLES // 2


def test_pipelined_draws_are_priced_as_arrays(monkeypatch):
    """Most kinds of stages go through the closed forms once, with all draws: a form that refuses arrays is the exception."""
    graph = transformer(layers=2, hidden=256, seq=64, training=True)
    plan = api.compile(graph, mode="pipelined", wafer=load_wafer("wse2"), cluster=load_cluster(), batch=8)
    assert not isinstance(plan, api.Infeasible)
    at_once = []
    price = plan_draws.DrawnWafers.price

    def counted(self, evaluate):
        wafers = []
        found = price(self, lambda wafer: wafers.append(wafer) or evaluate(wafer))
        at_once.append(wafers == [self.together])
        return found

    monkeypatch.setattr(plan_draws.DrawnWafers, "price", counted)
    plan_spread(plan, SAMPLES)
    assert sum(at_once) > 0.7 * len(at_once) > 0
