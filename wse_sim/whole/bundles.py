"""Choose the number of parallel streams of each tensor, after regions have their shapes.

The prices of a graph assume numbers that its shapes allow (:mod:`wse_sim.whole.parallel_links`).  A region that is
planned later may have too few rows or columns for them: then :func:`settled` plans again with the numbers that exist.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

from wse_sim.compiler.block_recompute import NOTE, BlockRecompute, block_recompute
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.compiler.streams import HOST, plain_name
from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.parameters import Attributes, spaced
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.repricing import reprice
from wse_sim.whole.coverage import forward_kernel
from wse_sim.whole.lower import without_program
from wse_sim.whole.parallel_links import as_links_see, groups_of, link_attributes
from wse_sim.whole.regions import KINDS, RegionKind, region_of
from wse_sim.whole.regions.contract import PlacedKernel, token_words
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.leading_rows import JoinedRows
from wse_sim.whole.regions.norm import NormRegion
from wse_sim.whole.regions.pointwise import Pointwise
from wse_sim.whole.room import fewest_bundles
from wse_sim.whole.skips import with_stores

LATE = 1.01
"""A region is late if its program takes this multiple of its price: whole words round."""
FEWER = 8
"""A tensor without a route, or with too many streams of the host, loses an eighth of its bundles, at least one."""
REPLANS = 3
"""A plan has its regions from the prices of the one before, so numbers may fall again; then its prices stay too low."""


class Paces:
    """Cycles per sample of regions, computed once for equal regions with equal bundles.

    A transformer has the same few regions in every layer.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, float] = {}

    def of(self, region: PlacedKernel) -> float:
        """Return :meth:`PlacedKernel.pace` of a region that has no wanted samples yet."""
        bundles = tuple(map(region.bundles.get, (*region.kernel.inputs, *region.kernel.outputs)))
        key = region.alike, bundles
        if key not in self._known:
            self._known[key] = region.pace()
        return self._known[key]


def split(
    plan: PipelinedPlan, regions: Sequence[PlacedKernel], most: Mapping[str, int], paces: Paces | None = None
) -> None:
    """Split tensors into the fewest bundles with which the regions at their ends keep the pace of the plan.

    If no number up to that of `most` suffices, the number with the smallest delay is used. A host core serves one stream, so
    if the host's bundles need more cells than an edge of the wafer has, the tensor that delays the regions least gets
    fewer. The plan's prices count the bundles as well. `paces` are those known of a plan before.
    """
    limits, paces = dict(most), paces or Paces()
    _choose(plan, regions, limits, paces)
    while crowded := _crowded(plan, regions):
        tries = [limits | {name: count - max(1, count // FEWER)} for name, count in crowded.items()]
        pace, number = min((_slowest(plan, regions, one, paces), i) for i, one in enumerate(tries))
        if pace < math.inf:
            limits = tries[number]
        _choose(plan, regions, limits, paces)
        if pace == math.inf:  # routing says so
            return


def bundles_of(tensor: str, regions: Sequence[PlacedKernel]) -> int:
    """Return the chosen number of bundles of a tensor."""
    return max((region.bundles.get(tensor, 1) for region in regions), default=1)


def _slowest(
    plan: PipelinedPlan, regions: Sequence[PlacedKernel], most: Mapping[str, int], paces: Paces
) -> float:
    """Return the cycles per sample of the slowest region with at most `most` bundles; infinite if there are no such numbers."""
    try:
        _choose(plan, regions, most, paces)
    except ModelError:
        return math.inf
    return max(map(paces.of, regions))


def _crowded(plan: PipelinedPlan, regions: Sequence[PlacedKernel]) -> dict[str, int]:
    """Return the tensors of the host with several bundles, and their number, at an edge that has too few cells."""
    streams = Counter[tuple[str, int]]()
    counts: dict[str, int] = {}
    for stream in plan.host_streams:
        column = stream.route[0 if stream.producer == HOST else -1][1]
        bundles = bundles_of(stream.tensor, regions)
        streams[stream.tensor, column] += bundles
        counts[stream.tensor] = bundles
    edges = Counter[int]()
    for (_, column), bundles in streams.items():
        edges[column] += bundles
    full = {column for column, bundles in edges.items() if bundles > plan.wafer.rows}
    return {name: counts[name] for name, column in streams if column in full and counts[name] > 1}


def _choose(
    plan: PipelinedPlan, regions: Sequence[PlacedKernel], most: Mapping[str, int], paces: Paces
) -> None:
    """Choose the bundles of all tensors, whatever the edges have room for."""
    by_name = {region.name: region for region in regions}
    wanted = _program_paces(plan)
    streams = [*plan.streams, *plan.host_streams]
    fewest = fewest_bundles(plan.graph, plan.wafer) if plan.graph.training else {}
    groups = []
    for tensors in _together(list(dict.fromkeys(stream.tensor for stream in streams)), regions):
        same = [stream for stream in streams if stream.tensor in tensors]
        names = {(s.tensor, name) for s in same for name in (s.producer, s.consumer) if name in by_name}
        ends = [(tensor, by_name[name]) for tensor, name in sorted(names)]
        if not ends:  # between kernels without a program
            continue
        limit = min(most.get(tensor, token_words(plan.graph, tensor)) for tensor in tensors)
        allowed = set(range(1, limit + 1)).intersection(*(region.splits(tensor) for tensor, region in ends))
        if not allowed:
            raise ModelError(
                f"tensor '{tensors[0]}' needs more than {limit} parallel streams, so that a receiving core has room for two samples "
                "of its part, but there are no free routes; use a larger wafer or smaller images"
            )
        least = max(fewest.get(tensor, 1) for tensor in tensors)
        enough = [count for count in allowed if count >= least] or [max(allowed)]
        groups.append((ends, tried(enough, token_words(plan.graph, tensors[0]))))

    def give(ends: Sequence[tuple[str, PlacedKernel]], count: int) -> float:
        """Set the number of bundles; return the cycles by which the regions at the ends exceed the pace."""
        for tensor, region in ends:
            # A tied tensor without a stream, the output of the network, has as many.
            for name in region.tied if tensor in region.tied else (tensor,):
                region.bundles[name] = count
        return sum(max(0.0, paces.of(region) - wanted[region.name]) for _, region in ends)

    # A bottleneck at one end hides the other end. So start from the largest numbers, and choose twice.
    for ends, allowed_counts in groups:
        give(ends, allowed_counts[-1])
    for ends, allowed_counts in 2 * groups:
        late = dict[int, float]()
        for count in allowed_counts:
            late[count] = give(ends, count)
            if late[count] == 0:
                break
        give(ends, min(late, key=lambda count: (late[count], count)))


def tried(counts: Collection[int], words: int) -> list[int]:
    """Return the numbers of bundles that are tried, of `counts`: some at a distance, and the fewest with at most one word of the
    `words` of a token in each, two, and so on, so that rows may have whole bundles or equally many words."""
    fewest = {int(ceil_div(words, size)) for size in range(1, words + 1)}
    return sorted({*spaced(sorted(counts)), *fewest.intersection(counts)})


def _program_paces(plan: PipelinedPlan) -> dict[str, float]:
    """Return the cycles per sample with which the program of each stage keeps the pace of the plan: less than the pace if
    the stage recomputes its forward pass, which the program does not."""
    # The plan of a program has no stage of the loss yet, and takes the same bundles.
    stages = [stage for stage in plan.stages if stage.kernels]
    pace = max(stage.cycles_per_sample for stage in stages)
    again = block_recompute(plan.graph) if NOTE in plan.notes else BlockRecompute()
    return {
        stage.name: pace * (1 - stage.forward_cycles / stage.cycles_per_sample)
        if again.runs_again(plain_name(stage.name)) and stage.cycles_per_sample  # a view takes none
        else pace
        for stage in stages
    }


def _together(tensors: Sequence[str], regions: Sequence[PlacedKernel]) -> list[list[str]]:
    """Group tensors that must have the same number of bundles because a region ties them."""
    alone = [[name] for name in tensors]
    ties = [[name for name in region.tied if name in tensors] for region in regions]
    return [sorted(group, key=tensors.index) for group in groups_of([*alone, *ties])]


def settled(graph: KernelGraph, compiler: Callable[[KernelGraph], Plan | Infeasible]) -> Plan | Infeasible:
    """Plan a laid graph in inference so that its prices count no more bundles than its regions have.

    A plan with a region that is slower than the pace is made again: norms and elementwise work get regions for as
    many bundles as their readers need, and prices count at most the bundles that exist. If regions for these bundles take
    more cores than that is worth, fewer are tried, for a pace between that of the plan and that of its programs. The plan with
    the fastest programs is returned, with the prices of its programs.

    Raises
    ------
    ModelError
        If a region has no room for its operands in the bundles that they can have.
    """
    found = compiler(graph)
    if graph.training or isinstance(found, Infeasible):
        return found
    limits, least = dict[str, int](), dict[str, int]()
    best, pace, goal = found, math.inf, 0.0
    late, paces, of_best = dict[str, float](), Paces(), list[RegionKind]()
    for _ in range(REPLANS + 1):
        if isinstance(found, Infeasible):
            break
        plan = expect(found, PipelinedPlan)
        try:
            regions = regions_with_bundles(plan, paces)
        except ModelError:
            needed = _with_room(plan)
            if (
                needed.items() <= least.items()
            ):  # no program for this plan: building it says so, a price needs none
                return best
            least = least | needed
            found = compiler(_limited(graph, limits, least))
            continue
        slowest = max(map(paces.of, regions), default=0.0)
        goal, before = LATE * max(stage.cycles_per_sample for stage in plan.stages), goal
        if slowest < pace:
            best, pace, late, of_best = plan, slowest, late_paces(plan, regions), regions
        elif goal > pace:  # the bundles that were asked for cost more than they bring
            plan, regions, least, goal = expect(best, PipelinedPlan), of_best, {}, math.sqrt(before * pace)
        fewer, more = _unmet(plan, regions, paces, goal)
        if not (fewer or more) or (fewer.items() <= limits.items() and more.items() <= least.items()):
            break
        limits, least = limits | fewer, least | more
        found = compiler(_limited(graph, limits, least))
    if pace == math.inf:
        raise ModelError(
            f"attention in '{graph.name}' needs more bands than the layers around it can send: its cores have no room for two samples "
            "of keys and values; use shorter sequences, a larger wafer or prices=plain"
        )
    best = expect(best, PipelinedPlan)
    return _stored(_repriced(best, late) if late else best, paces)


def regions_with_bundles(plan: PipelinedPlan, paces: Paces | None = None) -> list[RegionKind]:
    """Return the regions that have programs, with the bundles that :func:`split` chooses.

    Raises
    ------
    ModelError
        If a region has no program.
    """
    regions = _placed(plan)
    split(plan, regions, {}, paces)
    return regions


def _placed(plan: PipelinedPlan) -> list[RegionKind]:
    """Return the regions that have programs."""
    aside = without_program(plan.graph)
    kernels = [forward_kernel(plan, stage.name) for stage in plan.stages]
    return [
        region_of(plan.graph, kernel, stage, plan.wafer)
        for kernel, stage in zip(kernels, plan.stages, strict=True)
        if kernel.family in KINDS and kernel.name not in aside
    ]


def _with_room(plan: PipelinedPlan) -> dict[str, int]:
    """Return the fewest bundles, by tensor, with which the cores that receive it have room for it, if those are several."""
    found: dict[str, int] = {}
    for region in _placed(plan):
        for name in (*region.kernel.inputs, *region.kernel.outputs):
            if (counts := region.splits(name)) and counts[0] > 1:
                found[name] = max(counts[0], found.get(name, 1))
    return found


def _stored(plan: PipelinedPlan, paces: Paces) -> PipelinedPlan:
    """Return the plan with the samples that the stores of its program hold, if all its stages have programs."""
    regions = regions_with_bundles(plan, paces)
    return with_stores(plan, regions) if len(regions) == len(plan.stages) else plan


def late_paces(plan: PipelinedPlan, regions: Sequence[RegionKind]) -> dict[str, float]:
    """Return the cycles per sample of every region whose program is slower than its price, by kernel; of regions whose
    price counts bundles."""
    prices = {stage.name: stage.cycles_per_sample for stage in plan.stages}
    counted = [region for region in regions if Attributes.of(region.kernel.attrs).most_bundles]
    return {
        region.kernel.name: region.pace()
        for region in counted
        if LATE * prices[region.name] < region.pace() < math.inf
    }


def _unmet(
    plan: PipelinedPlan, regions: Sequence[RegionKind], paces: Paces, pace: float
) -> tuple[dict[str, int], dict[str, int]]:
    """Return, for regions that are slower than `pace`, the numbers of bundles that they need and that
    other regions at the other ends could have; without any, those that exist.
    They are returned as (those that exist, those that are needed)."""
    fewer, more = dict[str, int](), dict[str, int]()
    for region in regions:
        if paces.of(region) <= pace:
            continue
        for name in region.bundles:
            others = [one for one in regions if one is not region and name in one.bundles]
            fixed = [region, *(one for one in others if not _can_grow(one, name))]
            whole = token_words(plan.graph, name) if any(isinstance(one, NormRegion) for one in others) else 0
            count = _needed(fixed, name, pace, paces, whole=whole)
            if count is None:
                continue
            enough = [_needed([one], name, pace, paces, count) for one in others]
            if None in enough:
                more[name] = max(count, more.get(name, 0))
            elif _can_grow(region, name) and _needed([region, *others], name, pace, paces) is None:
                # Each keeps the pace with a number, but all with none: this region can have that of the others.
                more[name] = max(count, more.get(name, 0), *(number or 0 for number in enough))
        fewer |= region.bundles
    return ({}, more) if more else (fewer, more)


def _can_grow(region: RegionKind, tensor: str) -> bool:
    """Return whether a larger region could have more bundles of a tensor: norms, elementwise work and rows before the
    tokens of all tensors, layers of their results."""
    is_result = isinstance(region, Dense) and tensor == region.kernel.outputs[0]
    return is_result or isinstance(region, NormRegion | Pointwise | JoinedRows)


def _needed(
    regions: Sequence[RegionKind], tensor: str, pace: float, paces: Paces, least: int = 1, whole: int = 0
) -> int | None:
    """Return the fewest bundles of one tensor and those tied to it, at least `least` and a divisor of `whole`, with which
    all regions keep the pace, if their other tensors have as many as possible; None if there is no such number."""
    allowed = set(regions[0].splits(tensor)).intersection(*(one.splits(tensor) for one in regions[1:]))
    enough = [number for number in allowed if number >= least and whole % number == 0]
    for count in tried(enough, token_words(regions[0].graph, tensor)):
        if all(_keeps(one, tensor, count, pace, paces) for one in regions):
            return count
    return None


def _keeps(region: RegionKind, tensor: str, count: int, pace: float, paces: Paces) -> bool:
    """Return whether a region keeps the pace with a number of bundles of one tensor and those tied to it, and as many
    of its others as possible."""
    chosen = region.bundles
    tied = region.tied if tensor in region.tied else (tensor,)
    region.bundles = {name: region.splits(name)[-1] for name in chosen} | dict.fromkeys(tied, count)
    try:
        return paces.of(region) <= pace
    finally:
        region.bundles = chosen


def _repriced(plan: PipelinedPlan, paces: Mapping[str, float]) -> PipelinedPlan:
    """Return the plan with prices that are at least the cycles per sample of the programs, `paces` by kernel."""

    def changed(kernel: Kernel) -> Kernel:
        if kernel.name not in paces:
            return kernel
        words = round(paces[kernel.name] / plan.wafer.wavelet_cycles)
        return dataclasses.replace(kernel, attrs=frozen({**kernel.attrs, "link_words": words}))

    graph = dataclasses.replace(plan.graph, kernels=tuple(map(changed, plan.graph.kernels)))
    return reprice(dataclasses.replace(plan, graph=graph), plan.wafer, plan.cluster)


def _limited(graph: KernelGraph, limits: Mapping[str, int], least: Mapping[str, int]) -> KernelGraph:
    """Return the laid graph with prices for at most `limits` and at least `least` bundles of a tensor."""
    links, plain = link_attributes(as_links_see(graph), limits, least), without_program(graph)
    kernels = tuple(
        one
        if one.name in plain
        else dataclasses.replace(one, attrs=frozen({**one.attrs, **links.get(one.name, {})}))
        for one in graph.kernels
    )
    return dataclasses.replace(graph, kernels=kernels)
