"""Placers: legal on any graph, deterministic, close to the area bound, around dead cores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.placement import graphs
from wse_sim.compiler.contest import evaluate, parse_kgraph, place_graph
from wse_sim.compiler.placement.compact import compact
from wse_sim.compiler.placement.curves import area_bound, build_curves, level_grid, time_first
from wse_sim.compiler.placement.portfolio import PortfolioPlacer, _best_per_band
from wse_sim.compiler.placement.problem import (
    Block,
    ListedShapes,
    PlacementProblem,
    finish,
    first_illegality,
    wire_length,
)
from wse_sim.compiler.placers import placer_named, placer_names, rectangle_placer
from wse_sim.errors import ConfigError, PlacementError

SHAPES = {
    "chain": graphs.chain,
    "residual": graphs.residual,
    "unet": graphs.unet,
    "complete": graphs.complete,
}


def squares(n: int, side: int, fabric: int, **options) -> PlacementProblem:
    """`n` squares of one size in a chain, time 1."""
    blocks = tuple(Block(f"b{i}", ListedShapes([(side, side, 1.0)])) for i in range(n))
    edges = tuple((i, i + 1, 1.0) for i in range(n - 1))
    return PlacementProblem(fabric, fabric, blocks, edges, **options)


def elastic(n: int, fabric: int, *, seed: int = 0, **options) -> PlacementProblem:
    """`n` kernels whose time is work / cores over a grid of tilings, in a chain."""
    rng = np.random.default_rng(seed)
    blocks = []
    for i in range(n):
        work = float(rng.choice([1, 2, 4, 8])) * 1e5
        alternatives = [(r, c, work / (r * c)) for r in range(2, fabric, 5) for c in range(2, fabric, 5)]
        blocks.append(Block(f"b{i}", ListedShapes(alternatives)))
    edges = tuple((i, i + 1, 1.0) for i in range(n - 1))
    return PlacementProblem(fabric, fabric, tuple(blocks), edges, **options)


def check(problem: PlacementProblem, found) -> None:
    """Check that the placement is legal and its numbers equal an independent count."""
    rects = np.stack([found.x, found.y, found.width, found.height], axis=1)
    names = [b.name for b in problem.blocks]
    assert first_illegality(problem.width, problem.height, names, rects, problem.blocked) is None
    owner = np.zeros((problem.height, problem.width), dtype=int)
    for x, y, w, h in rects.tolist():
        owner[y : y + h, x : x + w] += 1
    assert owner.max() == 1
    for x, y, w, h in problem.blocked:
        assert owner[y : y + h, x : x + w].sum() == 0
    wire = 0.0
    for a, b, weight in problem.edges:
        ca, cb = rects[a, :2] + rects[a, 2:] / 2, rects[b, :2] + rects[b, 2:] / 2
        wire += weight * float(np.abs(ca - cb).sum())
    assert found.wire_l1 == pytest.approx(wire)
    assert found.cost == pytest.approx(problem.time_weight * found.max_time + problem.wire_weight * wire)


def place_time_first(problem: PlacementProblem, time_limit_s: float = 4.0):
    """Return the portfolio in this process as it places the stages of a model."""
    return PortfolioPlacer(1).place(time_first(problem), time_limit_s=time_limit_s)


def rectangles_of(found) -> tuple[np.ndarray, ...]:
    """Return corners and sizes of a placement."""
    return found.x, found.y, found.width, found.height


def test_three_squares_in_a_row():
    """Three squares of side 2 in a chain need wire 4: neighbours touch and stay aligned."""
    # centres 2 apart, two edges: 2 + 2
    problem = squares(3, 2, 6)
    found = PortfolioPlacer(processes=1).place(problem, time_limit_s=0.5)
    check(problem, found)
    assert found.wire_l1 == 4.0


def test_four_squares_that_fill_the_fabric():
    """Four squares of side 2 fill 4 x 4; a chain around the centre has wire 6."""
    # three edges of length 2
    problem = squares(4, 2, 4)
    found = PortfolioPlacer(processes=1).place(problem, time_limit_s=0.5)
    check(problem, found)
    assert found.wire_l1 == 6.0


def test_area_bound_of_two_listed_blocks():
    """The bound is the least time whose least areas fit."""
    # 4 x 4 = 16 cores; 12 + 12 = 24 is too much, 8 + 8 = 16 fits: time 3
    shapes = ListedShapes([(4, 3, 2.0), (4, 2, 3.0), (2, 2, 7.0)])
    problem = PlacementProblem(4, 4, (Block("a", shapes), Block("b", shapes)))
    assert area_bound(problem) == 3.0
    # one dead core leaves 15: 4 + 8 = 12 needs both at the same level, so 4 + 4 at time 7
    assert area_bound(PlacementProblem(4, 4, problem.blocks, blocked=((0, 0, 1, 1),))) == 7.0


def test_curve_of_one_shape():
    """A 2 x 3 shape that may turn is 3 wide from height 2 and 2 wide from height 3."""
    problem = PlacementProblem(5, 5, (Block("a", ListedShapes([(2, 3, 1.0)])),))
    curve = build_curves(problem, np.array([1.0])).curves[0, 0]
    assert curve[:5].tolist() == [16000, 16000, 3, 2, 2]


def test_levels_are_the_times_in_use():
    """Levels between two bounds are the times at which a curve changes."""
    shapes = ListedShapes([(4, 3, 2.0), (4, 2, 3.0), (2, 2, 7.0)])
    problem = PlacementProblem(9, 9, (Block("a", shapes),))
    assert level_grid(problem, 2.0, 6.9, 50).tolist() == [2.0, 3.0]


def test_compaction_pulls_a_gap_together():
    """Two separate blocks move until they touch, with centres aligned as far as integers allow."""
    # sizes 2 x 2 and 2 x 3: side by side |dx| = 2, and centres can only be 1/2 apart in y
    blocks = (Block("a", ListedShapes([(2, 2, 1.0)])), Block("b", ListedShapes([(3, 2, 1.0)])))
    problem = PlacementProblem(20, 20, blocks, ((0, 1, 1.0),))
    rects = compact(problem, np.array([[0, 0, 2, 2], [10, 9, 2, 3]]))
    assert wire_length(problem, *rects.T) == 2.5


@examples(8)
@given(
    n=st.integers(1, 9),
    kind=st.sampled_from(sorted(SHAPES)),
    seed=st.integers(0, 10**6),
    wire=st.sampled_from([0.0, 1.0, 30.0]),
    side=st.integers(40, 90),
    placer=st.sampled_from(["snake", "portfolio"]),
)
def test_any_graph_is_placed_legally(n, kind, seed, wire, side, placer):
    """The evaluator accepts the placement of random graphs and agrees with the placer's cost."""
    rng = np.random.default_rng(seed)
    convs = graphs.random_convs(n, rng)
    graph = parse_kgraph(
        graphs.kgraph_text(convs, SHAPES[kind](n), width=side, height=side + 7, wlength=wire)
    )
    problem = graph.problem()
    way = PortfolioPlacer(processes=1) if placer == "portfolio" else rectangle_placer(placer)
    found = way.place(problem, seed=seed, time_limit_s=0.1)
    check(problem, found)
    result = place_graph(graph, "snake", 0.1)
    assert evaluate(graph, result.placement).cost == result.cost
    assert result.lower_bound <= result.max_time * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_generated_graphs_in_two_processes(kind):
    """Forty kernels of every kind of graph: two processes find what one finds in twice the seconds."""
    rng = np.random.default_rng(3)
    n = 12 if kind == "complete" else 40
    graph = parse_kgraph(
        graphs.kgraph_text(graphs.random_convs(n, rng), SHAPES[kind](n), width=150, height=120)
    )
    problem = graph.problem()
    # without the clock: on a busy machine it may cut, and the work planned is what a seed repeats
    first = PortfolioPlacer(2, watch_clock=False).place(problem, time_limit_s=0.4, seed=5)
    second = PortfolioPlacer(1, watch_clock=False).place(problem, time_limit_s=0.8, seed=5)
    check(problem, first)
    for of_first, of_second in zip(rectangles_of(first), rectangles_of(second), strict=True):
        assert of_first.tolist() == of_second.tolist()
    assert first.cost == second.cost
    assert first.cost <= place_graph(graph, "snake", 1.0).cost


@pytest.mark.slow
def test_wire_heavy_instance_chooses_a_later_level(monkeypatch):
    """With wire worth 200 the best time is far above the area bound, and no window hides it."""
    # All of the planned work, however long this machine takes.
    monkeypatch.setattr(PortfolioPlacer.__init__, "__defaults__", (2, False))
    rng = np.random.default_rng(1)
    convs = graphs.random_convs(8, rng)
    heavy = parse_kgraph(graphs.kgraph_text(convs, graphs.chain(8), wlength=200))
    light = parse_kgraph(graphs.kgraph_text(convs, graphs.chain(8), wlength=0))
    one, two = place_graph(heavy, "portfolio", 1.0), place_graph(light, "portfolio", 1.0)
    assert one.max_time > 1.5 * one.lower_bound
    assert two.max_time < one.max_time
    assert one.wire_l1 < two.wire_l1


def test_time_without_weight_takes_the_smallest_blocks():
    """If only wire counts, two blocks shrink to their least area, however slow, and touch."""
    # least shape 1 x 1 at time 10^6, far above any level at which area matters: wire 1
    shapes = ListedShapes([(4, 3, 2.0), (4, 2, 3.0), (2, 2, 7.0), (1, 1, 1e6)])
    problem = PlacementProblem(4, 4, (Block("a", shapes), Block("b", shapes)), ((0, 1, 1.0),), 0.0, 1.0)
    found = PortfolioPlacer(processes=1).place(problem, time_limit_s=0.5)
    check(problem, found)
    assert found.cost == 1.0


@pytest.mark.slow
def test_a_late_level_far_behind_worse_ones_is_found():
    """Only the last level makes the wire short, and it wins although the levels before it cost more and more."""
    # 10 x 10 at time 1, then slower and no smaller in effect (10 x 9, ..., 10 x 5), then 1 x 1 at time 40:
    # wire 100 each way: about 10 * 100 at time 1 (turned bars of 10 x 5: 5 * 100 at time 6), 1 * 100 + 40
    shapes = ListedShapes([(10, 10 - i, 1.0 + i) for i in range(6)] + [(1, 1, 40.0)])
    problem = PlacementProblem(30, 30, (Block("a", shapes), Block("b", shapes)), ((0, 1, 1.0),), 1.0, 100.0)
    found = PortfolioPlacer(processes=1).place(problem, time_limit_s=0.5)
    check(problem, found)
    assert found.cost == 140.0


def test_bands_hold_the_best_tree_of_each():
    """Levels 1 to 8 are in three bands of a factor of 2: each has its best tree, and a narrow window has none."""
    trees = [(9.0, 1.0, (0,)), (5.0, 1.5, (1,)), (7.0, 3.0, (2,)), (6.0, 8.0, (3,)), (8.0, 4.5, (4,))]
    assert _best_per_band(trees, 3) == [(5.0, 1.5, (1,)), (6.0, 8.0, (3,)), (7.0, 3.0, (2,))]
    assert _best_per_band([(2.0, 1.0, (0,)), (1.0, 1.06, (1,))], 8) == []


def test_dead_cores_rows_and_columns_are_avoided():
    """A dead row, a dead column and dead cores stay free."""
    blocked = ((0, 30, 60, 1), (41, 0, 1, 60), (7, 8, 1, 1), (50, 50, 2, 2))
    problem = elastic(10, 60, blocked=blocked, rotate=False)
    found = place_time_first(problem)
    check(
        PlacementProblem(60, 60, problem.blocks, problem.edges, 1.0, 0.0, False, blocked),
        _without_wire(found),
    )


def _without_wire(found):
    from dataclasses import replace

    return replace(found, cost=found.max_time)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("n", [1, 7, 50])
def test_elastic_kernels_come_close_to_the_bound(n):
    """Kernels with many tilings use the fabric and stay within 8 % of the area bound on time."""
    problem = elastic(n, 200, rotate=False)
    found = place_time_first(problem, time_limit_s=1.0)
    assert found.max_time <= 1.08 * area_bound(problem)
    if n > 1:
        assert found.area_cores >= 0.85 * 200 * 200


def test_more_weight_on_time_never_slows_the_slowest():
    """Doubling the fabric cannot raise the best time."""
    small = place_time_first(elastic(6, 60, rotate=False), time_limit_s=0.5)
    blocks = elastic(6, 60).blocks
    large = place_time_first(PlacementProblem(120, 120, blocks, rotate=False), time_limit_s=0.5)
    assert large.max_time <= small.max_time


def test_interrupt_returns_the_best_so_far():
    """An interrupt during the search gives the best placement found and says so."""
    problem = elastic(6, 60)
    seen: list[float] = []

    def stop(_phase: str, cost: float) -> None:
        seen.append(cost)
        raise KeyboardInterrupt

    found = PortfolioPlacer(processes=1).place(problem, time_limit_s=2.0, progress=stop)
    check(problem, found)
    assert found.cost <= seen[0] + 1e-9
    assert "interrupted" in found.notes[0]


def test_too_much_to_place_is_refused_in_one_sentence():
    """The error is a PlacementError with the number of cores needed."""
    with pytest.raises(PlacementError, match="at least 20 cores"):
        rectangle_placer("portfolio").place(squares(5, 2, 4))
    with pytest.raises(PlacementError, match="'b0' has no shape"):
        rectangle_placer("snake").place(squares(1, 5, 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ListedShapes([]),
        lambda: ListedShapes([(0, 1, 1.0)]),
        lambda: PlacementProblem(0, 4, ()),
        lambda: PlacementProblem(4, 4, ()),
        lambda: squares(2, 1, 4, blocked=((3, 3, 2, 1),)),
        lambda: squares(2, 1, 4, wire_weight=-1.0),
        lambda: rectangle_placer("nobody"),
        lambda: rectangle_placer("shelves"),
        lambda: placer_named("tests.placement:nobody"),
    ],
)
def test_faults_of_the_problem(make):
    """Impossible problems and unknown names are configuration faults."""
    with pytest.raises(ConfigError):
        make()


@pytest.mark.slow
def test_registry_lists_its_placers():
    """Every listed placer can place."""
    assert "portfolio" in placer_names(contest=True)
    for name in placer_names(contest=True):
        problem = squares(3, 2, 9)
        check(problem, rectangle_placer(name).place(problem, time_limit_s=0.3))


def test_finish_reports_the_actual_time():
    """The time of a placement is that of its shapes, not of the requested level."""
    blocks = (Block("a", ListedShapes([(2, 2, 4.0), (2, 1, 8.0)])),)
    problem = PlacementProblem(4, 4, blocks, rotate=False)
    assert finish(problem, np.array([[0, 0, 2, 2]]), 9.0).max_time == 8.0
    assert finish(problem, np.array([[0, 0, 2, 2]]), 5.0).max_time == 4.0


def test_exact_proves_a_tiny_case():
    """CP-SAT proves the best trade of time against wire, and the portfolio finds it too."""
    # fabric 4 x 4, two blocks of 4 x 3 (time 2), 4 x 2 (time 3) or 2 x 2 (time 7), either turned;
    # 4 x 2 twice: 3 + 2 * 2 = 7; 2 x 2 twice: 7 + 2 * 2 = 11; so 7
    shapes = ListedShapes([(4, 3, 2.0), (4, 2, 3.0), (2, 2, 7.0)])
    problem = PlacementProblem(4, 4, (Block("a", shapes), Block("b", shapes)), ((0, 1, 1.0),), 1.0, 2.0)
    found = rectangle_placer("exact").place(problem, time_limit_s=5.0)
    check(problem, found)
    assert found.cost == 7.0
    assert "proved optimal" in found.notes[0]
    assert PortfolioPlacer(processes=1).place(problem, time_limit_s=0.5).cost == 7.0


def test_exact_takes_blocks_of_different_times():
    """The slowest block alone costs time: its 5 is the level, and the other one of 3 fits in what it leaves."""
    # fabric 4 x 4, 4 x 2 (time 5) and 4 x 2 (time 3) or 2 x 2 (time 7): 5 + 2 * 2 = 9, with the small one 7 + 2 * 2 = 11
    slow, quick = ListedShapes([(4, 2, 5.0)]), ListedShapes([(4, 2, 3.0), (2, 2, 7.0)])
    problem = PlacementProblem(4, 4, (Block("a", slow), Block("b", quick)), ((0, 1, 1.0),), 1.0, 2.0)
    found = rectangle_placer("exact").place(problem, time_limit_s=5.0)
    check(problem, found)
    assert (found.cost, found.level, found.max_time) == (9.0, 5.0, 5.0)


@pytest.mark.slow
def test_a_thousand_kernels_within_the_limits():
    """A thousand kernels are placed legally, at most a third above the area bound."""
    rng = np.random.default_rng(0)
    graph = parse_kgraph(
        graphs.kgraph_text(graphs.random_convs(1000, rng), graphs.residual(1000), width=633, height=633)
    )
    problem = graph.problem()
    found = PortfolioPlacer(processes=1).place(problem, time_limit_s=30.0)
    assert found.max_time <= 4 / 3 * area_bound(problem)
    check(problem, found)
