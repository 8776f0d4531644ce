"""Routes: shared trunks of multicast trees, loads that conserve bytes, detours around load, colors."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.handmade import transformer
from wse_sim import api
from wse_sim.compiler.coloring import (
    HOST_COLORS,
    KERNEL_COLORS,
    assign_colors,
    colors_for_streams,
    conflicts,
    largest_first,
    saturation_first,
    smallest_last,
)
from wse_sim.compiler.nets import (
    EAST,
    NORTH,
    SOUTH,
    WEST,
    Net,
    Point,
    bundle_width,
    edge_channel,
    hops_of,
    links_of,
    routers_of,
)
from wse_sim.compiler.plan import Infeasible, Region
from wse_sim.compiler.routing import Router
from wse_sim.compiler.routing_kernels import pairwise_sum
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.kernels.blocks.triggered_products import FEED, SUMS
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.modes.simulation import simulate

WAFER, CLUSTER = load_wafer("wse2"), load_cluster()
SMALL = WAFER.derive(rows=132, cols=137, program_rows=130, program_cols=130)
MANY = 10**6  # colors: no limit


def routed(nets: list[Net], rows: int = 12, cols: int = 12, capacity: float = 1e9) -> Router:
    """Return the nets routed on an empty fabric."""
    router = Router(np.zeros((rows, cols, 4)), capacity)
    router.route(nets)
    return router


def net(source, *sinks, size=12.0, width=1, gradients=False) -> Net:
    """Return a tensor of 12 bytes per sample on one link."""
    return Net("t", source, sinks, size, width, gradients)


def test_an_l_loads_each_link_it_crosses_once():
    """From (1, 1) to (3, 4): three links east in row 1, two south in column 4."""
    one = net((1, 1), (3, 4))
    loads = routed([one]).loads
    assert one.length() == 5
    assert loads.sum() == 12.0 * 5
    assert loads[1, 1:4, EAST].tolist() == [12.0, 12.0, 12.0]
    assert loads[1:3, 4, SOUTH].tolist() == [12.0, 12.0]


def test_the_way_back_leaves_the_far_cores():
    """From (3, 4) to (1, 1): links west leave columns 4, 3, 2, links north leave rows 3, 2."""
    loads = routed([net((3, 4), (1, 1))]).loads
    assert loads[3, 2:5, WEST].tolist() == [12.0, 12.0, 12.0]
    assert loads[2:4, 1, NORTH].tolist() == [12.0, 12.0]


def test_gradients_run_back_on_the_opposite_links():
    """A tensor with gradients loads both directions of its links with as many bytes."""
    loads = routed([net((1, 1), (1, 5), gradients=True)]).loads
    assert loads[1, 1:5, EAST].sum() == loads[1, 2:6, WEST].sum() == 48.0


def test_consumers_share_the_trunk():
    """To (1, 9) and (4, 9) the eight links of row 1 are crossed once: 8 + 3 links, not 8 + 11."""
    tree = net((1, 1), (1, 9), (4, 9))
    loads = routed([tree]).loads
    assert tree.length() == 11
    assert loads.sum() == 12.0 * 11
    assert hops_of(tree.path((4, 9))) == 11
    assert tree.path((1, 9)) == ((1, 1), (1, 9))


def test_a_consumer_joins_in_the_middle_of_a_leg():
    """(5, 4) joins row 1 in column 4: 8 links of row 1 and 4 of column 4."""
    tree = net((1, 1), (1, 9), (7, 4))
    tree.sinks = ((1, 9), (7, 4))
    routed([tree])
    assert tree.length() == 8 + 6
    assert tree.path((7, 4)) == ((1, 1), (1, 4), (7, 4))


def test_nets_go_around_a_full_link():
    """With a full link in row 1 the stream goes south first."""
    router = Router(np.zeros((6, 6, 4)), capacity_bytes=20.0)
    router.loads[1, 2, EAST] = 20.0
    one = net((1, 1), (3, 4))
    router.route([one])
    assert one.path((3, 4)) != ((1, 1), (1, 4), (3, 4))
    assert router.loads[1, 2, EAST] == 20.0


def test_rerouting_spreads_equal_nets():
    """Four nets between the same corners do not all take one route: each link carries one or two."""
    nets = [net((2, 2), (9, 9)) for _ in range(4)]
    router = routed(nets, capacity=24.0)
    assert router.loads.max() <= 24.0


def test_crossing_streams_need_two_colors_and_apart_ones_share():
    """Two nets in one row conflict, a third far away does not; gradients double the colors."""
    nets = [net((0, 0), (0, 9)), net((0, 5), (0, 8)), net((7, 0), (7, 9))]
    router = routed(nets)
    colors, used = assign_colors(router, nets, MANY)
    assert colors[0] != colors[1]
    assert used == 2
    for one in nets:
        one.with_gradients = True
    assert assign_colors(router, nets, MANY)[1] == 4


def test_host_channels_lie_on_the_nearer_edge():
    """60 channels over 600 rows: row 123 belongs to channel 12, whose middle is row 125."""
    assert edge_channel((123, 10), 600, 100, 60) == (125, 0)
    assert edge_channel((599, 80), 600, 100, 60) == (595, 99)


points = st.tuples(st.integers(0, 29), st.integers(0, 24))


@examples(60)
@given(
    nets=st.lists(
        st.tuples(points, st.lists(points, min_size=1, max_size=4), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    capacity=st.sampled_from([1.0, 30.0, 1e9]),
    limit=st.sampled_from([2, 4, MANY]),
)
def test_loads_conserve_bytes_and_colors_separate_trees(nets, capacity, limit):
    """The loads of all links sum to bytes x tree length; every sink is reached; conflicting nets differ in color."""
    made = [
        Net(str(i), source, tuple(sinks), 6.0, width, gradients)
        for i, (source, sinks, width, gradients) in enumerate(nets)
    ]
    router = routed(made, 30, 25, capacity)
    colors, used = assign_colors(router, made, limit)  # may route some of them again
    expected = sum(n.length() * n.bytes_per_sample * (2 if n.with_gradients else 1) for n in made)
    np.testing.assert_allclose(router.loads.sum(), expected, rtol=1e-9, atol=1e-6)
    assert router.loads.min() > -1e-9
    for n in made:
        for sink in n.sinks:
            path = n.path(sink)
            assert path[0] == n.source
            assert path[-1] == sink
            assert all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(path))
            assert hops_of(path) >= abs(sink[0] - n.source[0]) + abs(sink[1] - n.source[1])
        assert n.length() <= sum(hops_of(n.path(sink)) for sink in n.sinks)
    for a, b in conflicts(made, 30, 25).edges:
        assert colors[a] != colors[b]
    assert max(colors) < used


def test_a_bundle_takes_the_face_it_fits_through():
    """30 links into a region of 40 rows and 3 columns come from the west or east, never from the north."""
    tall = Region(40, 30, 40, 3, 80)
    wide = Region(5, 60, 3, 40, 80)
    assert bundle_width([tall, wide], 30) == 30
    one = Net("t", (60, 31), ((6, 80),), 30.0, 30, False, {(60, 31): tall, (6, 80): wide})
    router = routed([one], 100, 110)
    path = one.path((6, 80))
    assert path[0][0] == path[1][0]  # leaves along a row
    assert path[-1][1] == path[-2][1]  # enters along a column
    assert router.loads[60, 31].sum() == 0.0  # inside its regions the kernels' own traffic counts
    assert router.loads.max() == 1.0


def test_a_net_in_the_way_is_routed_again():
    """A column crosses two nets of one row, which needs three colors; with two colors allowed it goes around their
    ends.
    """
    nets = [net((5, 1), (5, 8)), net((5, 0), (5, 7)), net((1, 5), (9, 5))]
    router = Router(np.zeros((12, 12, 4)), 1e9)
    for one in nets:
        one.parents = {one.source: None, one.sinks[0]: one.source}
        router.add(one)
    assert assign_colors(router, nets, MANY)[1] == 3
    colors, used = assign_colors(router, nets, 2)
    assert used == 2
    assert hops_of(nets[2].path((9, 5))) == 8 + 2 * 3  # column 8 meets one of them
    assert all(colors[a] != colors[b] for a, b in conflicts(nets, 12, 12).edges)


def colors_at_routers(plan: PipelinedPlan) -> dict[tuple[int, int], dict[int, set[tuple[str, str]]]]:
    """Map each router to its colors and the tensors that use them, from routes and widths of the streams alone."""
    rows, cols = plan.wafer.rows, plan.wafer.cols
    ways = 2 if plan.graph.training else 1
    found: dict = defaultdict(lambda: defaultdict(set))
    for s in plan.streams:
        for (r0, c0), (r1, c1) in itertools.pairwise(s.route):
            line, size = (r0, rows) if r0 == r1 else (c0, cols)
            first = min(max(0, line - s.width // 2), size - s.width)
            lanes = range(first, first + s.width)
            along = range(min(c0, c1), max(c0, c1) + 1) if r0 == r1 else range(min(r0, r1), max(r0, r1) + 1)
            for cell in itertools.product(lanes, along) if r0 == r1 else itertools.product(along, lanes):
                for color in range(s.color, s.color + ways):
                    found[cell][color].add((s.producer, s.tensor))
    return found


@pytest.mark.parametrize(("training", "colors"), [(True, 24), (True, 17), (False, 24)])
def test_no_router_has_two_tensors_on_one_color(training, colors):
    """Check router by router; colors stay below those of kernels and host, and a clique needs as many as it has trees."""
    made = compile_pipelined(
        transformer(3, 128, 4, 32, training=training), SMALL.derive(colors=colors), CLUSTER, batch=16
    )
    assert isinstance(made, PipelinedPlan), made.message
    at = colors_at_routers(made)
    assert all(len(tensors) == 1 for used in at.values() for tensors in used.values())
    graph: nx.Graph = nx.Graph()
    for used in at.values():
        graph.add_edges_from(itertools.combinations({t for tensors in used.values() for t in tensors}, 2))
    ways = 2 if training else 1
    highest = max(s.color for s in made.streams) + ways
    assert ways * max(map(len, nx.find_cliques(graph)), default=1) <= highest
    assert highest <= colors - HOST_COLORS - KERNEL_COLORS * ways


@pytest.mark.slow
def test_too_few_colors_are_infeasible_and_named():
    """24 colors leave 15 to streams of a training pipeline; 10 leave one, and a pair is needed."""
    assert len({FEED, *SUMS}) == KERNEL_COLORS  # what the programs of products have
    assert colors_for_streams(24, training=True) == 15
    assert colors_for_streams(24, training=False) == 18
    answer = compile_pipelined(transformer(2, 128, 4, 32), SMALL.derive(colors=10), CLUSTER, batch=16)
    assert isinstance(answer, Infeasible)
    assert answer.binding == "colors"
    assert (answer.limit, answer.unit) == (1.0, "colors")
    assert answer.need >= 2
    assert "router in row" in answer.message


def test_a_full_link_slows_the_pipeline_and_is_the_binding_resource():
    """With links at 1/64 of the rate the step takes the time of the busiest link, and plan and result name it."""
    thin = SMALL.derive(link_bytes_per_cycle=4.0 / 64)
    graph = transformer(2, 128, 4, 32)
    fast, slow = (
        compile_pipelined(graph, wafer, CLUSTER, batch=64, layouts=False) for wafer in (SMALL, thin)
    )
    assert isinstance(fast, PipelinedPlan)
    assert isinstance(slow, PipelinedPlan)
    assert fast.link_cycles <= fast.pace_cycles == fast.sample_cycles
    assert fast.binding != "links"
    load = slow.link_bytes_per_sample.max()
    assert slow.link_cycles == pytest.approx(load / (4.0 / 64)) == slow.sample_cycles
    assert slow.binding == "links"
    (note,) = (note for note in slow.notes if note.startswith("links bind: the link"))
    assert f"occupied for {slow.link_cycles:.6g} cycles" in note
    times = re.search(r"per sample, (\S+) times the slowest", note)
    assert times is not None
    assert float(times[1]) == pytest.approx(slow.link_cycles / fast.pace_cycles, rel=0.01)
    free = CLUSTER.derive(worker_samples_per_s=1e9, worker_bytes_per_s=1e15)
    result = simulate(compile_pipelined(graph, thin, free, batch=64, layouts=False), trace=False)
    assert result.binding == "links"
    assert result.samples_per_s <= WAFER.clock_hz / slow.link_cycles * 1.0001


@pytest.mark.thinned(1)
@pytest.mark.parametrize("colors", [4, 5])
def test_a_plan_without_colors_enough_names_the_router_that_binds(colors: int) -> None:
    """What a region keeps for itself takes all colors: none is left for streams, wherever regions are."""
    wafer = load_wafer("wse2").model_copy(update={"colors": colors})
    refused = api.compile(api.load_model("fc-mnist"), wafer, mode="pipelined", batch=8)
    assert isinstance(refused, Infeasible)
    assert "router in row" in refused.message
    assert "the limit is 0 colors" in refused.message


def _plain_cost(router: Router, start: Point, end: Point, net: Net) -> float:
    """Return the equation at the head of the router, with NumPy."""
    r0, r1, c0, c1, direction = links_of(start, end, net.width, router.rows, router.cols)
    across = 0 if direction in (EAST, WEST) else 1
    own = net.bytes_per_sample / (r1 - r0, c1 - c0)[across]
    use = (router.loads[r0:r1, c0:c1, direction].max(axis=across) + own) / router.capacity
    crowd = router.crowd[r0:r1, c0:c1].max(axis=across) / 8.0
    return float(
        use.size + 40 * (use * use).sum() + 2000 * np.maximum(use - 1, 0).sum() + 0.5 * (crowd @ crowd)
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_costs_what_the_equation_says(seed: int) -> None:
    """With one sink the cost is the least over all L and Z routes, each priced with NumPy, equal bit for bit."""
    draw = np.random.default_rng(seed)
    router = Router(draw.random((40, 50, 4)) * 30, 10.0)
    router.crowd += draw.integers(0, 20, router.crowd.shape, dtype=np.int32)
    for _ in range(20):
        source, sink = ((int(draw.integers(0, 40)), int(draw.integers(0, 50))) for _ in range(2))
        if source[0] == sink[0] or source[1] == sink[1]:
            continue
        net = Net("x", source, (sink,), float(draw.random() * 50), int(draw.integers(1, 4)), False)
        cost = router.grow(net)
        (r0, c0), (r1, c1) = source, sink
        lines = [[(r0, c1)], [(r1, c0)]]
        rows = [round(r0 + f * (r1 - r0)) for f in (0.25, 0.5, 0.75)] + [
            r0 + (net.width + 1) * (-1 if r0 < r1 else 1)
        ]
        cols = [round(c0 + f * (c1 - c0)) for f in (0.25, 0.5, 0.75)] + [
            c0 + (net.width + 1) * (-1 if c0 < c1 else 1)
        ]
        lines += [[(row, c0), (row, c1)] for row in rows if 0 <= row < 40 and row not in (r0, r1)]
        lines += [[(r0, col), (r1, col)] for col in cols if 0 <= col < 50 and col not in (c0, c1)]
        costs = [
            sum(_plain_cost(router, a, b, net) for a, b in pairwise([source, *line, sink])) for line in lines
        ]
        assert cost == min(costs)


@pytest.mark.parametrize("seed", range(5))
def test_colors_are_given_in_the_order_of_networkx(seed: int) -> None:
    """The fast forms of three greedy orders color every graph as networkx does."""
    graph = nx.gnp_random_graph(60, 0.2 + 0.1 * seed, seed=seed)
    near = [list(graph[node]) for node in graph]
    for quick, slow in (
        (saturation_first, "DSATUR"),
        (largest_first, "largest_first"),
        (smallest_last, "smallest_last"),
    ):
        colors: dict[int, int] = {}
        for node in quick(near, colors):
            taken = {colors[other] for other in near[node] if other in colors}
            colors[node] = min({*range(len(near))} - taken)
        assert colors == nx.greedy_color(graph, strategy=slow)


def test_nets_that_meet_are_told_like_the_edges_of_a_graph() -> None:
    """Neighbours come in the order of a networkx graph, which decides colors."""
    rng = np.random.default_rng(3)
    points = [tuple(map(int, rng.integers(0, 30, 2))) for _ in range(80)]
    made = [net(a, b) for a, b in pairwise(points) if a[0] != b[0] and a[1] != b[1]]
    for one in made:
        corner = (one.source[0], one.sinks[0][1])
        one.parents = {one.source: None, corner: one.source, one.sinks[0]: corner}
    held = [
        {
            (row, col)
            for a, b in one.legs()
            for r0, r1, c0, c1 in [routers_of(a, b, one.width, 30, 30)]
            for row in range(r0, r1)
            for col in range(c0, c1)
        }
        for one in made
    ]
    graph = nx.Graph()
    graph.add_nodes_from(range(len(made)))
    graph.add_edges_from((i, j) for i, j in itertools.combinations(range(len(made)), 2) if held[i] & held[j])
    meeting = conflicts(made, 30, 30)
    assert [sorted(meeting[i]) for i in range(len(made))] == [sorted(graph[i]) for i in range(len(made))]
    assert all(
        sorted(meeting[i])[: sum(j < i for j in graph[i])] == meeting[i][: sum(j < i for j in graph[i])]
        for i in graph
    )
    assert sorted(meeting.edges) == sorted(graph.edges)


def test_sums_are_added_in_the_order_of_numpy() -> None:
    """Sums are equal bit for bit, below and above the sizes at which NumPy splits a sum."""
    draw = np.random.default_rng(0)
    for n in (0, 1, 7, 8, 9, 64, 127, 128, 129, 500, 1000):
        x = draw.random(n)
        assert pairwise_sum(x) == x.sum()
