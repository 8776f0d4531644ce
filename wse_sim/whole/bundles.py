"""Choose the number of parallel streams of each tensor, after regions have their shapes.

The prices of a graph assume numbers that its shapes allow (:mod:`wse_sim.whole.side_by_side`).  A region that is
planned later may have too few rows or columns for them: then :func:`settled` plans again with the numbers that exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import networkx as nx

from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.covered import forward_kernel
from wse_sim.whole.regions import KINDS, RegionKind, region_of
from wse_sim.whole.side_by_side import MOST_BUNDLES, link_attributes, most_bundles

LATE = 1.01
"""A region is late if its program takes this multiple of its price: whole words round."""
REPLANS = 3
"""A plan has its regions from the prices of the one before, so numbers may fall again; then its prices stay too low."""


def split(plan: PipelinedPlan, regions: Sequence[RegionKind], most: Mapping[str, int]) -> None:
    """Split tensors into the fewest bundles with which the regions at their ends keep the pace of the plan.

    If no number up to that of `most` (8 for other tensors) suffices, the number with the smallest delay is used.
    The plan's prices count the bundles as well.
    """
    by_name = {region.name: region for region in regions}
    pace = max(stage.cycles_per_sample for stage in plan.stages)
    streams = [*plan.streams, *plan.host_streams]
    groups = []
    for tensors in _together(list(dict.fromkeys(stream.tensor for stream in streams)), regions):
        same = [stream for stream in streams if stream.tensor in tensors]
        names = {(s.tensor, name) for s in same for name in (s.producer, s.consumer) if name in by_name}
        ends = [(tensor, by_name[name]) for tensor, name in sorted(names)]
        limit = min(most.get(tensor, MOST_BUNDLES) for tensor in tensors)
        allowed = set(range(1, limit + 1)).intersection(*(region.splits(tensor) for tensor, region in ends))
        if not allowed:
            raise ModelError(
                f"tensor '{tensors[0]}' needs more than {limit} parallel streams, so that a receiving core has room for two samples "
                "of its part, but there are no free routes; use a larger wafer or smaller images"
            )
        groups.append((ends, sorted(allowed)))

    def give(ends: Sequence[tuple[str, RegionKind]], count: int) -> float:
        """Set the number of bundles; return the cycles by which the regions at the ends exceed the pace."""
        for tensor, region in ends:
            region.bundles[tensor] = count
        return sum(max(0.0, region.pace() - pace) for _, region in ends)

    # A bottleneck at one end hides the other end. So start from the largest numbers, and choose twice.
    for ends, allowed_counts in groups:
        give(ends, allowed_counts[-1])
    for ends, allowed_counts in 2 * groups:
        late = {count: give(ends, count) for count in allowed_counts}
        give(ends, min(late, key=lambda count: (late[count], count)))


def _together(tensors: Sequence[str], regions: Sequence[RegionKind]) -> list[list[str]]:
    """Group tensors that must have the same number of bundles because a region ties them."""
    ties = nx.Graph()
    ties.add_nodes_from(tensors)
    for region in regions:
        nx.add_path(ties, [name for name in region.tied if name in ties])
    return [sorted(group, key=tensors.index) for group in nx.connected_components(ties)]


def settled(graph: KernelGraph, compiler: Callable[[KernelGraph], Plan | Infeasible]) -> Plan | Infeasible:
    """Plan a laid graph in inference so that its prices count no more bundles than its regions have.

    A plan whose regions keep the pace of their prices is returned as it is.
    """
    found = compiler(graph)
    if graph.training:
        return found
    most = most_bundles(graph)
    limits: dict[str, int] = {}
    for _ in range(REPLANS):
        if isinstance(found, Infeasible):
            return found
        try:
            fewer = late_bundles(expect(found, PipelinedPlan))
        except ModelError:  # no program for this plan: building it says so, a price needs none
            return found
        fewer = {
            name: count
            for name, count in fewer.items()
            if count < min(most.get(name, 0), limits.get(name, count + 1))
        }
        if not fewer:
            return found
        limits |= fewer
        found = compiler(_limited(graph, limits))
    return found


def late_bundles(plan: PipelinedPlan) -> dict[str, int]:
    """Return the number of bundles of every tensor at a region whose program is slower than its price.

    Raises
    ------
    ModelError
        If a region has no program.
    """
    kernels = [forward_kernel(plan, stage.name) for stage in plan.stages]
    regions = [
        region_of(plan.graph, kernel, stage, plan.wafer)
        for kernel, stage in zip(kernels, plan.stages, strict=True)
        if kernel.family in KINDS
    ]
    split(plan, regions, {})
    prices = {stage.name: stage.cycles_per_sample for stage in plan.stages}
    late = [region for region in regions if region.pace() > LATE * prices[region.name]]
    return {name: count for region in late for name, count in region.bundles.items()}


def _limited(graph: KernelGraph, limits: Mapping[str, int]) -> KernelGraph:
    """Return the laid graph with prices for at most `limits` bundles of a tensor."""
    links = link_attributes(graph, limits)
    kernels = tuple(
        dataclasses.replace(one, attrs=frozen({**one.attrs, **links.get(one.name, {})}))
        for one in graph.kernels
    )
    return dataclasses.replace(graph, kernels=kernels)
