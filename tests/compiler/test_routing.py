"""Routes: shared trunks of multicast trees, loads that conserve bytes, ways around load, colors."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wse_sim.compiler.routing import (
    EAST,
    NORTH,
    SOUTH,
    WEST,
    Net,
    Router,
    assign_colors,
    conflicts,
    edge_channel,
    hops_of,
)


def routed(nets: list[Net], rows: int = 12, cols: int = 12, capacity: float = 1e9) -> Router:
    """The nets routed on an empty fabric."""
    router = Router(np.zeros((rows, cols, 4)), capacity)
    router.route(nets)
    return router


def net(source, *sinks, size=12.0, width=1, gradients=False) -> Net:
    """A tensor of 12 bytes per sample on one link."""
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
    """Four nets between the same corners do not all take one way: each link carries one or two."""
    nets = [net((2, 2), (9, 9)) for _ in range(4)]
    router = routed(nets, capacity=24.0)
    assert router.loads.max() <= 24.0


def test_crossing_streams_need_two_colors_and_apart_ones_share():
    """Two nets in one row conflict, a third far away does not; gradients double the colors."""
    nets = [net((0, 0), (0, 9)), net((0, 5), (0, 8)), net((7, 0), (7, 9))]
    routed(nets)
    colors, used = assign_colors(nets, 12, 12)
    assert colors[0] != colors[1]
    assert used == 2
    for one in nets:
        one.with_gradients = True
    assert assign_colors(nets, 12, 12)[1] == 4


def test_host_channels_lie_on_the_nearer_edge():
    """60 channels over 600 rows: row 123 belongs to channel 12, whose middle is row 125."""
    assert edge_channel((123, 10), 600, 100, 60) == (125, 0)
    assert edge_channel((599, 80), 600, 100, 60) == (595, 99)


points = st.tuples(st.integers(0, 29), st.integers(0, 24))


@settings(max_examples=60, deadline=None)
@given(
    nets=st.lists(
        st.tuples(points, st.lists(points, min_size=1, max_size=4), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    capacity=st.sampled_from([1.0, 30.0, 1e9]),
)
def test_loads_conserve_bytes_and_colors_separate_trees(nets, capacity):
    """The loads of all links sum to bytes x tree length; every sink is reached; conflicting nets differ in color."""
    made = [
        Net(str(i), source, tuple(sinks), 6.0, width, gradients)
        for i, (source, sinks, width, gradients) in enumerate(nets)
    ]
    router = routed(made, 30, 25, capacity)
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
    colors, used = assign_colors(made, 30, 25)
    for a, b in conflicts(made, 30, 25).edges:
        assert colors[a] != colors[b]
    assert max(colors) < used
