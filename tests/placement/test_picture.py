"""The depth of a kernel in the dataflow, by which the picture of a placement is colored."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from wse_sim.compiler.placement.picture import dataflow_depth


@pytest.mark.parametrize("seed", range(5))
def test_the_depth_is_the_longest_path_from_a_source(seed: int) -> None:
    """NetworkX sorts a random graph without cycles into layers: a node's own is one below the last of its producers'."""
    draw = random.Random(seed)
    n = 12
    names = draw.sample(range(n), n)
    edges = [(names[a], names[b]) for a in range(n) for b in range(a + 1, n) if draw.random() < 0.3]
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(n))
    depth = {node: k for k, layer in enumerate(nx.topological_generations(graph)) for node in layer}
    assert dataflow_depth(n, edges).tolist() == [depth[node] for node in range(n)]


def test_the_depth_in_a_cycle_ends_at_the_number_of_nodes() -> None:
    """Node 0 feeds a cycle of 1 and 2, in which every turn adds two: it ends after three turns, at most at 3."""
    assert dataflow_depth(3, [(0, 1), (1, 2), (2, 1)]).tolist() == [0.0, 3.0, 3.0]
