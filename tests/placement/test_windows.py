"""Local windows give less wire or no change, stay legal, and move only the window's blocks."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.placement import graphs
from wse_sim.compiler.contest import parse_kgraph
from wse_sim.compiler.placement import windows
from wse_sim.compiler.placement.portfolio_processes import WindowTask, Worker
from wse_sim.compiler.placement.problem import (
    Block,
    ListedShapes,
    PlacementProblem,
    first_illegality,
    wire_length,
)
from wse_sim.compiler.placement.windows import Edges, choose_window, merge, solve_window
from wse_sim.compiler.placers import rectangle_placer


def in_a_row(sides: list[int], fabric: int, edges) -> tuple[PlacementProblem, np.ndarray]:
    """Squares side by side from the lower-left corner, time 1."""
    blocks = tuple(Block(f"b{i}", ListedShapes([(side, side, 1.0)])) for i, side in enumerate(sides))
    starts = np.concatenate(([0], np.cumsum(sides)[:-1]))
    rects = np.array([[x, 0, side, side] for x, side in zip(starts, sides, strict=True)])
    return PlacementProblem(fabric, fabric, blocks, edges), rects


def test_a_window_reorders():
    """Three squares of side 2 in the order 0, 2, 1 have wire 6; their chain needs 4."""
    # fixed order: |0-1| = 4, |1-2| = 2; next to each other: 2 + 2
    problem, rects = in_a_row([2, 2, 2], 6, ((0, 1, 1.0), (1, 2, 1.0)))
    rects[[1, 2]] = rects[[2, 1]]
    assert wire_length(problem, *rects.T) == 6.0
    found = solve_window(problem, rects, 1.0, [0, 1, 2], 4.0)
    assert wire_length(problem, *found.rects.T) == 4.0
    assert not found.cut


def test_a_window_reshapes(monkeypatch):
    """A block between two others is turned so that they come closer, within the box allowed."""
    # 2 x 2, 6 x 2, 2 x 2 in a row: 4 + 4 = 8; the middle one upright: 2 + 2 = 4
    bar = ListedShapes([(2, 6, 1.0)])
    dot = ListedShapes([(2, 2, 1.0)])
    problem = PlacementProblem(
        10, 10, (Block("a", dot), Block("b", bar), Block("c", dot)), ((0, 1, 1.0), (1, 2, 1.0))
    )
    rects = np.array([[0, 4, 2, 2], [2, 4, 6, 2], [8, 4, 2, 2]])
    monkeypatch.setattr(windows, "MARGIN", 0.2)
    found = solve_window(problem, rects, 1.0, [1, 2], 4.0)
    # block a stays at (0, 4): b is 2 x 6 beside it, c beside b
    assert found.rects[0].tolist() == [0, 4, 2, 2]
    assert wire_length(problem, *found.rects.T) == 4.0


def test_a_window_after_its_deadline_is_not_solved():
    """A task that waited for its process too long says that the clock stopped it; one in time takes the better order."""
    problem, rects = in_a_row([2, 2, 2], 6, ((0, 1, 1.0), (1, 2, 1.0)))
    rects[[1, 2]] = rects[[2, 1]]
    corners = tuple(tuple(rect) for rect in rects.tolist())
    late, early = (
        Worker(problem).run(WindowTask(corners, 1.0, (0, 1, 2), 4.0, time.monotonic() + more))
        for more in (-1.0, 60.0)
    )
    assert (late.rects, late.work, late.stopped) == (None, 0.0, True)
    assert early.rects is not None
    assert wire_length(problem, *early.rects.T) == 4.0


def test_what_cannot_improve_is_left_alone():
    """Two squares that touch have their least wire."""
    problem, rects = in_a_row([2, 2], 6, ((0, 1, 1.0),))
    assert solve_window(problem, rects, 1.0, [0, 1], 4.0).rects is None


def test_windows_that_want_the_same_place_are_merged_one_by_one():
    """Blocks 1 and 2 both move next to block 0: only the first move is accepted."""
    problem, rects = in_a_row([2, 2, 2], 12, ((0, 1, 1.0), (0, 2, 1.0)))
    rects[:, 0] = (5, 0, 10)
    first, second = rects.copy(), rects.copy()
    first[1] = (5, 2, 2, 2)  # on top of block 0: wire 5 becomes 2
    second[2] = (5, 2, 2, 2)
    merged = merge(problem, rects, [([1], first), ([2], second)])
    assert merged.tolist() == first.tolist()


def test_a_window_holds_neighbours_in_the_graph():
    """Among squares at equal distance, those that share an edge with the window come first."""
    problem, rects = in_a_row([2] * 5, 20, ((2, 4, 1.0), (2, 0, 1.0)))
    rects[:, :2] = [(0, 8), (4, 8), (8, 8), (12, 8), (16, 8)]
    rects[[0, 4], 1] = (4, 12)  # corners of 0 and 4 are 10 and 10 away from 2; 1 and 3 are 2 away
    window = choose_window(rects, Edges.of(problem), 2, 3, np.random.default_rng(0))
    assert window == [1, 2, 3]
    rects[:, :2] = [(8, 4), (4, 8), (8, 8), (12, 8), (8, 12)]  # all four are 2 away
    window = choose_window(rects, Edges.of(problem), 2, 3, np.random.default_rng(0))
    assert 2 in window
    assert set(window) & {0, 4}


@examples(6)
@given(n=st.integers(2, 9), seed=st.integers(0, 10**6), kind=st.sampled_from(["chain", "residual", "unet"]))
def test_any_window_is_legal_and_no_worse(n, seed, kind):
    """On random graphs and windows the result is legal, shorter where changed, and blocks outside are unchanged."""
    rng = np.random.default_rng(seed)
    edges = {"chain": graphs.chain, "residual": graphs.residual, "unet": graphs.unet}[kind](n)
    problem = parse_kgraph(
        graphs.kgraph_text(graphs.random_convs(n, rng), edges, width=70, height=60)
    ).problem()
    placed = rectangle_placer("snake").place(problem)
    rects = np.stack([placed.x, placed.y, placed.width, placed.height], axis=1)
    free = choose_window(rects, Edges.of(problem), int(rng.integers(n)), 4, rng)
    found = solve_window(problem, rects, placed.level, free, 2.0).rects
    if found is None:
        return
    assert first_illegality(70, 60, [b.name for b in problem.blocks], found) is None
    assert wire_length(problem, *found.T) < wire_length(problem, *rects.T)
    outside = np.setdiff1d(np.arange(n), free)
    assert (found[outside] == rects[outside]).all()
    for i in free:
        front = problem.blocks[i].shapes.front(placed.level)
        w, h = found[i, 2:].tolist()
        upright = (front.widths <= w) & (front.heights <= h)
        assert (upright | ((front.widths <= h) & (front.heights <= w))).any()
