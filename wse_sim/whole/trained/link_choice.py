"""Choose the number of parallel streams of each tensor in training before regions have their shapes.

Both ends of a tensor have one number of streams, and kernels tie tensors: all operands and the result of a norm, of elementwise work and of attention have the same number of
streams. So the residual stream of a transformer has one number on all its regions. A region needs a row or a column per stream,
so a number that one region would choose may be one that another has no room for. With A_i(T, s) the fewest cores of stage
i that keep the pace T with s streams of its tensors, each group of tied tensors takes::

    s = argmin sum over the stages i at its ends of A_i(T, s)

where T is the pace of a placement near the area bound of stages that choose for themselves, and other groups have the numbers that they took last. The
prices of the plan then have these numbers alone, so its regions have room for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial
from math import ceil, inf

from wse_sim.compiler.block_recompute import block_recompute
from wse_sim.compiler.defects import usable_cores
from wse_sim.compiler.scores import without_scores
from wse_sim.compiler.sizing import Group, Sizer
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.trained_rows import MOST_STREAMS
from wse_sim.kernels.contract.parameters import spaced
from wse_sim.kernels.families.norm import lanes_for
from wse_sim.modes.pipelined.repricing import sizer_for
from wse_sim.whole.lower import BACKWARD, without_program
from wse_sim.whole.parallel_links import (
    TRAINED_AS_ONE,
    as_links_see,
    groups_of,
    tied_in_training,
    trained_bundles,
)
from wse_sim.whole.regions.contract import PAIR, token_words
from wse_sim.whole.room import fewest_bundles

NEARLY = 1.02  # times the fewest cores: few streams need few routes and leave more shapes
PACKED = 1.1  # times the area bound: the pace of many placements
TURNS = 2  # a group that chose before its neighbours chooses once more
Counts = Mapping[str, int]
"""Numbers of parallel streams by tensor."""


def with_streams(kernel: Kernel, layer: Kernel, counts: Counts) -> Kernel:
    """Return a pass of the forward kernel `layer` with a price for exactly these numbers of streams; tensors without
    one keep their range."""
    own = layer.family == kernel.family and kernel.family in TRAINED_AS_ONE
    if not (own or kernel.attrs.get("trained_rows", False)):
        return kernel
    stated: dict[str, object] = {}
    if own and layer.outputs[0] in counts:
        given = counts[layer.outputs[0]]
        stated = {"bands" if kernel.family == "attention" else "most_bundles": given, "least_bundles": given}
    if not own:
        for name, side in ((layer.inputs[0], "bundles"), (layer.outputs[0], "results")):
            if name in counts:
                stated |= {f"most_{side}": counts[name], f"least_{side}": counts[name]}
        stated["has_links"] = len(stated) == 4
    return dataclasses.replace(kernel, attrs=frozen({**kernel.attrs, **stated}))


def with_chosen_streams(graph: KernelGraph, wafer: Wafer) -> KernelGraph:
    """Return a laid training graph whose prices have the numbers of streams with which its stages need the fewest cores; the
    same graph if the stages do not fit with them."""
    chosen = graph_with(graph, chosen_streams(graph, wafer))
    return chosen if chosen == graph or least_bound(chosen, wafer) is not None else graph


def graph_with(graph: KernelGraph, counts: Counts) -> KernelGraph:
    """Return the laid training graph with prices for these numbers of streams."""
    aside = without_program(graph)
    forward = {kernel.name: kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD}

    def changed(kernel: Kernel) -> Kernel:
        layer = forward.get(kernel.forward) if kernel.phase in BACKWARD else kernel
        if layer is None or {kernel.name, kernel.forward} & aside:
            return kernel
        return with_streams(kernel, layer, counts)

    return dataclasses.replace(graph, kernels=tuple(map(changed, graph.kernels)))


def chosen_streams(graph: KernelGraph, wafer: Wafer) -> dict[str, int]:
    """Return the number of streams of each tensor that norms, elementwise work, attention or residual sums tie to others;
    none if the stages fit at no pace."""
    groups = _groups(graph)
    found = least_bound(graph, wafer) if groups else None
    if found is None:
        return {}
    sizer, pace = found[0], PACKED * found[1]
    fewest, fast = fewest_bundles(graph, wafer), _on_fast_links(graph, wafer, pace)
    tied = {
        name: next((count for count in counts if count >= fast[name]), counts[-1])
        for names, counts in groups
        for name in names
    }
    cores: dict[object, float] = {}

    def cores_of(stage: Group) -> float:
        """Return the cores with fast links of the other tensors, which takes little time, or with any links."""
        return next((one for one in map(partial(_cores, stage), (fast | tied, tied)) if one < inf), inf)

    def _cores(stage: Group, counts: Counts) -> float:
        stated = _stage_with(stage, counts)
        key = tuple(kernel.signature for kernel in stated.kernels), sizer.kind(stage)
        if key not in cores:
            free, fixed = sizer.least_by_width(stage, pace), sizer.least_by_width(stated, pace)
            good = float((1.0 / fixed).sum())
            cores[key] = float(free.min() * (1.0 / free).sum()) / good if good else inf
        return cores[key]

    chosen: dict[str, int] = {}
    for names, counts in TURNS * groups:
        ends = [
            one for one in sizer.groups if {*one.forward.inputs, *one.forward.outputs}.intersection(names)
        ]
        least = max(fewest.get(name, 1) for name in names)
        needed = dict[int, float]()
        for count in [count for count in counts if count >= least] or [counts[-1]]:
            tied |= dict.fromkeys(names, count)
            needed[count] = sum(map(cores_of, ends))
        enough = [count for count, area in needed.items() if area <= NEARLY * min(needed.values()) < inf]
        tied |= dict.fromkeys(names, enough[0] if enough else counts[-1])
        chosen |= dict.fromkeys(names, enough[0]) if enough else {}
    return chosen


def _on_fast_links(graph: KernelGraph, wafer: Wafer, pace: float) -> dict[str, int]:
    """Return, by tensor, the streams whose links are busy for half of the pace in both passes together."""
    found = {}
    for name, most in trained_bundles(as_links_see(graph)).items():
        words = graph.tensors[name].elements / graph.samples / PAIR * wafer.wavelet_cycles
        found[name] = max(1, min(ceil(2 * words / (pace / 2)), most))
    return found


def _stage_with(stage: Group, counts: Counts) -> Group:
    """Return a stage with prices for these numbers of streams."""
    layer = stage.forward
    back = [with_streams(one, layer, counts) for one in stage.backward]
    return dataclasses.replace(stage, forward=with_streams(layer, layer, counts), backward=back)


def least_bound(graph: KernelGraph, wafer: Wafer) -> tuple[Sizer, float] | None:
    """Return the sizer of the stages and their area bound, with activations that are recomputed if they do not fit otherwise."""
    whole = graph.with_samples(1)
    lean = without_scores(whole)
    for stated, again in (
        (whole, None),
        (lean, None),
        (whole, block_recompute(whole)),
        (lean, block_recompute(lean)),
    ):
        sizer = sizer_for(stated, wafer, again)
        pace = sizer.pace_for(usable_cores(wafer) * wafer.pipeline_efficiency)
        if pace is not None:
            return sizer, pace
    return None


def _groups(graph: KernelGraph) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return groups of tensors that have the same number of streams, with the numbers that are tried."""
    seen = as_links_see(graph)
    most = trained_bundles(seen)
    ties = [[name for name in names if most[name] > 1] for names in tied_in_training(seen)]
    alone = [[name] for name, count in most.items() if count > 1]
    order = {name: index for index, name in enumerate(graph.tensors)}
    tied = sorted(sorted(names, key=order.__getitem__) for names in groups_of([*alone, *ties]))
    return [(tuple(names), _numbers(seen, names, most[names[0]])) for names in tied]


def _numbers(graph: KernelGraph, names: Iterable[str], most: int) -> list[int]:
    """Return the numbers of streams that all kernels at the ends of tied tensors may have, some of many."""
    allowed = set(range(1, min(most, MOST_STREAMS) + 1))
    for kernel in graph.kernels:
        if kernel.phase is Phase.FORWARD and {*names}.intersection(kernel.outputs):
            words = token_words(graph, kernel.outputs[0])
            if kernel.family == "norm":
                allowed &= {*lanes_for(2 * words, most)}
            if kernel.family == "attention":
                allowed &= {count for count in allowed if most % count == 0}
    return spaced(sorted(allowed), dense=8, step=1.2)
