"""The time limit on the clock: searches end by it, keep their best, and state that they were cut."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.placement import graphs
from wse_sim.compiler.contest import parse_kgraph
from wse_sim.compiler.placement import portfolio
from wse_sim.compiler.placement.anneal import Annealer
from wse_sim.compiler.placement.compact import compact
from wse_sim.compiler.placement.curves import area_bound, build_curves
from wse_sim.compiler.placement.peel import Peeler, dataflow_orders
from wse_sim.compiler.placement.portfolio import PortfolioPlacer
from wse_sim.compiler.placement.portfolio_processes import warm_up
from wse_sim.compiler.placement.problem import first_illegality


def residual_problem(n: int = 40):
    """Return the convolutions with skips on a fabric of 150 x 120 tiles."""
    convs = graphs.random_convs(n, np.random.default_rng(3))
    return parse_kgraph(graphs.kgraph_text(convs, graphs.residual(n), width=150, height=120)).problem()


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("make", "processes", "limit_s"),
    [(PortfolioPlacer, 1, 1.0), (PortfolioPlacer, 2, 1.0)],
)
def test_more_work_than_time_is_cut(monkeypatch, make, processes, limit_s):
    """With hours of planned work the clock ends the search, and the result is legal and states this.

    Peeling ends by itself, so no limit would cut it on every machine.
    """
    monkeypatch.setattr(portfolio, "WORK_PER_S", 1e12)
    monkeypatch.setattr(portfolio, "START_S", 0.5)
    warm_up()
    problem = residual_problem()
    found = make(processes).place(problem, time_limit_s=limit_s)
    rects = np.stack([found.x, found.y, found.width, found.height], axis=1)
    assert first_illegality(150, 120, [b.name for b in problem.blocks], rects) is None
    assert any("the clock cut" in note for note in found.notes)


def test_a_clock_that_ends_before_the_first_placement_is_named(monkeypatch):
    """On a stopped machine the blocks are in rows, and the result states that it was cut."""
    monkeypatch.setattr(portfolio, "START_S", -60.0)
    problem = residual_problem()
    found = PortfolioPlacer(1).place(problem, time_limit_s=1.0)
    rects = np.stack([found.x, found.y, found.width, found.height], axis=1)
    assert first_illegality(150, 120, [b.name for b in problem.blocks], rects) is None
    assert any("the clock cut" in note for note in found.notes)


@pytest.mark.slow
def test_a_cut_annealing_still_cools_down():
    """An annealing that cannot finish by its deadline ends there with the work it did."""
    problem = residual_problem()
    level = 1.5 * area_bound(problem)
    annealer = Annealer(problem, build_curves(problem, np.array([level])))
    order = dataflow_orders(annealer.n, annealer.ea, annealer.eb)[0]
    seed = Peeler(annealer, order).seeds(0, keep=20, room=(150, 120))[0]
    options = {"seed": 1, "temperatures": (0.05 * seed.cost, 0.001 * seed.cost), "lambdas": (1.0, 1.0)}
    result = annealer.run(seed.tree, 0, work=10**13, deadline=time.monotonic() + 0.3, **options)
    assert result.cut
    assert 0 <= result.work < 10**13  # none where the machine stood still until the deadline
    assert result.cost <= seed.cost
    free = annealer.run(seed.tree, 0, work=10**5, **options)
    assert not free.cut
    assert free.work >= 10**5


def test_a_move_of_a_lone_block_costs_two_units_of_work():
    """It has no wire, and its tree is one node: nothing is added to the two units of every move."""
    problem = residual_problem(1)
    annealer = Annealer(problem, build_curves(problem, np.array([1.5 * area_bound(problem)])))
    (seed, *_) = Peeler(annealer, np.array([0])).seeds(0, keep=1, room=(150, 120))
    result = annealer.run(seed.tree, 0, seed=1, work=10**4, temperatures=(1.0, 0.1), lambdas=(1.0, 1.0))
    assert (result.work, result.moves) == (10**4, 10**4 // 2)


def test_no_program_starts_after_the_deadline():
    """Compaction after its deadline leaves the rectangles unchanged."""
    problem = residual_problem(4)
    rects = np.array([[0, 0, 10, 10], [20, 30, 10, 10], [50, 60, 10, 10], [90, 90, 10, 10]])
    late = compact(problem, rects, deadline=time.monotonic() - 1.0)
    assert late.tolist() == rects.tolist()
    assert compact(problem, rects).tolist() != rects.tolist()


def test_interrupt_with_two_processes():
    """An interrupt ends the workers and gives the best placement found."""
    problem = residual_problem(12)

    def stop(_phase: str, _cost: float) -> None:
        raise KeyboardInterrupt

    found = PortfolioPlacer(2).place(problem, time_limit_s=600.0, progress=stop)
    assert "interrupted" in found.notes[0]
