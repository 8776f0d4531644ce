"""Words go around dead cores: their routes are as short as those of networkx, and links lose no word."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from tests.compiler.test_pipelined_options import SMALL, pace, plan
from wse_sim.compiler.detours import extra_hops, links_of_way, moved_loads, runs_met, runs_of
from wse_sim.compiler.nets import EAST, NORTH, SOUTH, WEST
from wse_sim.compiler.plan import Stream
from wse_sim.errors import ConfigError
from wse_sim.hardware import Wafer

SIDE = 24


def wafer_with(dead: list[tuple[int, int]], **changes: object) -> Wafer:
    size = {"rows": SIDE, "cols": SIDE, "program_rows": SIDE, "program_cols": SIDE}
    return SMALL.derive(**size, dead_cores=tuple(dead), **changes)


def stream(*route: tuple[int, int], width: int = 1) -> Stream:
    hops = sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(route))
    return Stream("x", "a", "b", 8.0, 0.0, route, hops, width, 0)


def living(dead: list[tuple[int, int]]) -> nx.Graph:
    grid = nx.grid_2d_graph(SIDE, SIDE)
    grid.remove_nodes_from(dead)
    return grid


@pytest.mark.parametrize("count", [5, 40, 120])
def test_ways_round_random_dead_cores_are_shortest(count: int):
    """Compare every route with networkx, on maps where dead cores are isolated, touch, and enclose others."""
    draw = np.random.default_rng(count)
    dead = sorted({(int(r), int(c)) for r, c in draw.integers(0, SIDE, (count, 2))})
    grid = living(dead)
    runs = runs_of(wafer_with(dead))
    assert len(runs) >= min(count, 8)
    for run in runs:
        assert set(run.straight[1:-1]) <= set(dead)
        if run.way:
            assert len(run.way) - 1 == nx.shortest_path_length(grid, run.before, run.behind)
            assert nx.is_path(grid, list(run.way))
            assert run.extra_hops >= 2
            assert run.extra_hops % 2 == 0  # the colors of a chessboard
        else:
            assert not nx.has_path(grid, run.before, run.behind)


def test_a_stream_along_a_row_is_as_long_as_a_walk_over_living_cores():
    """An isolated dead core costs two hops; no walk that leaves and joins the row at each dead core is shorter, and no
    walk is shorter than networkx finds. Two adjacent ones cost two as well, because they are passed on one side.
    """
    dead = [(5, 4), (5, 9), (5, 10), (8, 15)]
    runs = runs_of(wafer_with(dead))
    row, turned = stream((5, 0), (5, 20)), stream((5, 0), (5, 15), (20, 15))
    assert extra_hops(row, runs, SIDE, SIDE) == 2 + 2
    assert extra_hops(turned, runs, SIDE, SIDE) == 2 + 2 + 2
    assert row.hops + 4 >= nx.shortest_path_length(living(dead), (5, 0), (5, 20))
    assert extra_hops(stream((5, 0), (5, 4), (20, 4)), runs, SIDE, SIDE) == 0  # the corner is cut
    assert nx.shortest_path_length(living(dead), (5, 0), (20, 4)) == 19


def test_of_a_wide_stream_the_longest_line_counts():
    """Five lines, rows 3 to 7: two dead cores on one of them, one on another."""
    runs = runs_of(wafer_with([(3, 4), (3, 9), (7, 12)]))
    wide = stream((5, 0), (5, 20), width=5)
    assert extra_hops(wide, runs, SIDE, SIDE) == 4
    assert extra_hops(stream((5, 0), (5, 20), width=3), runs, SIDE, SIDE) == 0
    assert [len(line) for line in runs_met(wide, runs, SIDE, SIDE)] == [2]


@pytest.mark.parametrize("seed", range(4))
def test_links_beside_a_dead_core_carry_what_passed_over_it(seed: int):
    """Words are neither lost nor created: those that reach a working core leave it or end there as before."""
    draw = np.random.default_rng(seed)
    dead = sorted({(int(r), int(c)) for r, c in draw.integers(1, SIDE - 1, (30, 2))})
    runs = runs_of(wafer_with(dead))
    loads = draw.integers(0, 50, (SIDE, SIDE, 4)).astype(np.float32)
    loads[0, :, NORTH] = loads[-1, :, SOUTH] = loads[:, 0, WEST] = loads[:, -1, EAST] = 0
    moved = moved_loads(loads, runs)

    def net_out(flow: np.ndarray) -> np.ndarray:
        """Return the words that begin in a core less those that end there."""
        out = flow.sum(axis=2)
        out[1:] -= flow[:-1, :, SOUTH]
        out[:-1] -= flow[1:, :, NORTH]
        out[:, 1:] -= flow[:, :-1, EAST]
        out[:, :-1] -= flow[:, 1:, WEST]
        return out

    assert np.allclose(net_out(moved), net_out(loads))
    assert moved.min() >= 0
    more = 0.0
    for run in runs:
        for straight in (run.straight, run.straight[::-1]):
            more += run.extra_hops * min(float(loads[link]) for link in links_of_way(straight))
    assert moved.sum() - loads.sum() == pytest.approx(more, rel=1e-5)


def test_one_stream_goes_round_one_dead_core_by_hand():
    """Eastward along row 5 past (5, 4) the route is north, east, east, south instead of east, east."""
    loads = np.zeros((SIDE, SIDE, 4), np.float32)
    loads[5, 0:20, EAST] = 7
    moved = moved_loads(loads, runs_of(wafer_with([(5, 4)])))
    assert moved[5, 3, NORTH] == moved[4, 3, EAST] == moved[4, 4, EAST] == moved[4, 5, SOUTH] == 7
    assert moved[5, 3, EAST] == moved[5, 4, EAST] == 0
    assert moved[5, :, EAST].sum() == 18 * 7
    assert moved.sum() == 22 * 7


def test_where_there_is_no_way_round_words_pass_over():
    """Words pass over a dead core in the corridor between two dead rows, and over one at the edge without a neighbour."""
    corridor = wafer_with([(5, 4)], dead_rows=(4, 6))
    (run,) = (run for run in runs_of(corridor) if run.along_row)
    assert run.way == ()
    assert run.extra_hops == 0
    assert not any(run.along_row for run in runs_of(wafer_with([(5, 0)])))


def test_a_plan_goes_round_dead_cores_where_the_file_says_so():
    """Without the option routes are unchanged and there is a note. With it, the streams that meet dead cores have hops
    and loads, and kernels are unchanged.
    """
    draw = np.random.default_rng(3)
    dead = tuple((int(r), int(c)) for r, c in draw.integers(0, 130, (40, 2)))
    over = plan(wafer=SMALL.derive(dead_cores=dead))
    round_ = plan(wafer=SMALL.derive(dead_cores=dead, defect_links="around"))
    assert any("pass over them by redundant links (assumed)" in note for note in over.notes)
    assert any("go around them: up to" in note for note in round_.notes)
    runs = runs_of(round_.wafer)
    more = [b.hops - a.hops for a, b in zip(over.streams, round_.streams, strict=True)]
    assert more == [extra_hops(one, runs, SMALL.rows, SMALL.cols) for one in over.streams]
    assert max(more) >= 2
    assert pace(round_) == pace(over)
    assert [stage.region for stage in round_.stages] == [stage.region for stage in over.stages]
    assert round_.link_bytes_per_sample.sum() > over.link_bytes_per_sample.sum()


def test_an_unknown_kind_of_links_is_refused():
    with pytest.raises(ConfigError, match="defect_links"):
        SMALL.derive(defect_links="glue")
