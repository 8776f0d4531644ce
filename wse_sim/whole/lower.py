"""Lower a kernel graph to the graph of the fabric programs: passes, and the layout of each kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import partial, reduce

from wse_sim.frontend.training import add_training
from wse_sim.graph import Kernel, KernelGraph, Phase, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.caches import without_caches
from wse_sim.whole.channel_parts import in_parts
from wse_sim.whole.channels_last import with_images
from wse_sim.whole.elementwise_steps import in_one_family, with_steps
from wse_sim.whole.factors import with_affine, with_raised, with_scales
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.host_images import with_patches, with_spare_pixels, with_whole_words
from wse_sim.whole.host_part import (
    behind_host,
    for_every_sample,
    forward_graph,
    looked_up,
    undropped,
    with_rows_of_host,
    with_tokens_first,
    without_dropout,
    without_logarithm,
)
from wse_sim.whole.masks import with_masks
from wse_sim.whole.parallel_links import (
    PACKED,
    PLAIN_PRICED,
    WITHOUT_PROGRAM,
    as_links_see,
    link_attributes,
    packed_tensors,
    plain_priced,
    readers_of,
    trained_attributes,
    trained_bundles,
)
from wse_sim.whole.regions.contract import PAIR, has_work, is_pointwise
from wse_sim.whole.regions.depthwise import Depthwise
from wse_sim.whole.regions.element_work import work_of
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.norm import affine_parts
from wse_sim.whole.regions.pointwise_place import numbers_in, shared_operands
from wse_sim.whole.rotations import with_rotations
from wse_sim.whole.separate_work import scaled_apart, with_image_stores, worked_apart
from wse_sim.whole.split_products import transposed, unpacked
from wse_sim.whole.tokens import with_pooled_tokens, with_small_windows

Pass = Callable[[KernelGraph], KernelGraph]
REWRITES: tuple[Pass, ...] = (
    without_caches,
    with_patches,
    with_images,
    with_spare_pixels,
    with_whole_words,
    for_every_sample,
    with_affine,
    with_raised,
    with_scales,
    with_steps,
    transposed,
    in_parts,
    with_pooled_tokens,
    with_small_windows,
    unpacked,
    with_masks,
    with_rotations,
    worked_apart,
    scaled_apart,
    with_image_stores,
)
"""Passes that keep all work on the wafer, in order; a pass that changes nothing returns the same graph."""
OF_INFERENCE = (
    with_images,
    with_spare_pixels,
    with_whole_words,
    with_small_windows,
    with_affine,
    in_parts,
    worked_apart,
    scaled_apart,
    with_image_stores,
)
"""Those of an inference graph alone."""
TRAINING_REWRITES: tuple[Pass, ...] = (
    *(one for one in REWRITES if one not in OF_INFERENCE),
    partial(with_whole_words, trains=True),
    partial(in_parts, trains=True),
    partial(worked_apart, trains=True),
    in_one_family,
)
"""The same for the forward part of a training graph."""
PASSES: tuple[Pass, ...] = (with_tokens_first, behind_host, with_rows_of_host, *REWRITES)
"""Passes over an inference graph that is simulated, in order."""
TRAINING_PASSES: tuple[Pass, ...] = (
    with_tokens_first,
    without_dropout,
    without_logarithm,
    partial(behind_host, trains=True),
    with_rows_of_host,
    *TRAINING_REWRITES,
)
"""Passes over the forward part of a training graph that is simulated, in order."""

PRODUCTS = ("gemm", "conv2d")
"""Families whose inputs are partitioned over the rows of a region."""
BACKWARD = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)

LAYS: dict[str, dict[str, object]] = {
    "attention": {"pairs": True},
    "layout": {"joined": True},
    "softmax": {"whole": True},
    "conv2d": {"unfolded": True},
    "gemm": {"word_rows": True},
    "pool2d": {"apart": True},
}
"""Attributes that select the layout of a family on the fabric."""
IN_WORDS: dict[str, object] = {"in_words": True}
"""The same for families that work element by element."""
TRAINED_LAYS: dict[str, dict[str, object]] = {
    "attention": {"trains": True},
    "generated": {"trains": True},
    "norm": {"whole": True},
    "pool2d": {"trains": True},
}
"""Further layout attributes of kernels that train."""
SUMS = "dsum"
"""Name suffix of kernels that sum the gradients of a tensor with several readers."""
MEETS = PRODUCTS
"""Families whose training cost includes the derivative of the fused activation."""


def inputs_over_rows(graph: KernelGraph, *, streamed: bool = False) -> KernelGraph:
    """Return the graph with the layouts that its kernels have on the fabric, so that the plan prices what is
    simulated.

    Products have their inputs over the rows of their regions and their outputs over the columns. The input
    gradient reads the same weights, so it has the gradients of the outputs over the columns. Attention has
    queries over the rows and keys over the columns; in training, a norm has its rows on one column of cores;
    in inference, convolutions work on whole words and finish on their last row. A product that makes queries,
    keys and values in one becomes three (:mod:`wse_sim.whole.split_products`), and a convolution with a residual sum or
    a product with a function becomes two kernels (:mod:`wse_sim.whole.separate_work`). With `streamed` weights a kernel has the whole wafer
    and no region, so region costs are left out, and functions stay in their layers.
    """
    passes = TRAINING_PASSES if graph.training else PASSES
    if streamed:
        passes = tuple(one for one in passes if getattr(one, "func", one) is not worked_apart)
    return laid_graph(_prepared(graph, passes), streamed=streamed)


def priced_graph(
    graph: KernelGraph, unsupported: Callable[[KernelGraph], Collection[str]] = lambda laid: ()
) -> KernelGraph:
    """Return the graph with the layouts of :func:`inputs_over_rows`, and with all work on the wafer.

    Table look-ups, dropout and a loss of the model keep their kernels and their plain prices, and so do the forward
    kernels that `unsupported` names in a laid graph. A graph that has these layouts already is returned unchanged.
    """
    if is_laid(graph):
        return graph
    passes = TRAINING_REWRITES if graph.training else REWRITES
    while names := unsupported(laid := laid_graph(_prepared(graph, passes))):
        plain = sorted(plain_priced(graph).union(names))
        graph = dataclasses.replace(graph, facts=frozen({**graph.facts, PLAIN_PRICED: "\n".join(plain)}))
    return laid


def is_laid(graph: KernelGraph) -> bool:
    """Whether kernels of a graph have the layout attributes of their fabric programs."""
    laid = ("orientation", *(name for lays in (*LAYS.values(), IN_WORDS) for name in lays))
    return any(name in kernel.attrs for kernel in graph.kernels for name in laid)


def laid_graph(graph: KernelGraph, *, streamed: bool = False) -> KernelGraph:
    """Return `graph` with the layout attributes of :func:`inputs_over_rows`; kernels are neither split nor
    removed."""
    forward = {kernel.name: kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD}
    is_network, rest = not streamed, frozen_layers(graph)
    dense = _trained_rows(graph) if graph.training and is_network else {}
    seen = as_links_see(graph)
    links = dict[str, dict[str, object]]()
    if is_network:
        links = trained_attributes(seen) if graph.training else link_attributes(seen)
    if rest and is_network:
        one_link = link_attributes(graph, dict.fromkeys(graph.tensors, 1))
        links |= {name: one_link[name] for name in rest if name in one_link}
    packed = packed_tensors(seen) if is_network else set()
    plain = without_program(graph)
    makers = {kernel.name for kernel in forward.values() if packed.intersection(kernel.outputs)}

    def trained(kernel: Kernel) -> dict[str, object]:
        if kernel.family != "conv2d":
            return dense.get(kernel.name, {})
        owner = forward.get(kernel.forward, kernel)
        return {"trains": True, "has_bias": "bias" in items_of(owner)}

    def laid(kernel: Kernel) -> dict[str, object]:
        if {kernel.name, kernel.forward} & plain:
            return {}
        trains = graph.training and kernel.name not in rest
        in_regions = is_network and not trains
        if kernel.family in PRODUCTS:
            orientation = "nk" if kernel.phase is Phase.INPUT_GRADIENT else "kn"
            held = LAYS.get(kernel.family, {}) if in_regions else {}
            if in_regions and Depthwise.is_for(kernel):
                held = {"apart": True}
            if {kernel.name, kernel.forward} & makers and kernel.family == "gemm":
                held = {**held, "layers": PACKED}
            return {
                "orientation": orientation,
                **held,
                **({} if in_regions or not is_network else trained(kernel)),
            }
        # A backward kernel has no parameters of its own: use those of the forward kernel whose name it
        # extends.
        passed = kernel if kernel.name in forward else forward.get(kernel.name.rpartition(".")[0], kernel)
        lays = IN_WORDS if is_pointwise(kernel.family) else LAYS.get(kernel.family, {})
        lays = lays | (affine_parts(passed) if passed.family == kernel.family else {})
        if in_regions and "inputs" in kernel.attrs and is_pointwise(kernel.family):
            lays = lays | {"inputs": max(1, len(kernel.inputs))}  # parameters rest on the cores
        if in_regions and is_pointwise(kernel.family) and (shared := len(shared_operands(graph, kernel))):
            lays = lays | {"shared_inputs": shared}
        if is_network and has_work(kernel.family):
            lays = lays | {"unit_words": work_of(kernel).unit // PAIR, "trains": trains}
        if trains and (numbers := numbers_in(passed)) and kernel.family == passed.family == "generated":
            lays = lays | {"numbers": ",".join(map(str, numbers))}
        owner = forward.get(kernel.forward) if kernel.family == "activation" else None
        if is_network and owner is not None and owner.family in MEETS:
            lays = lays | {"met": True}
        if is_network and kernel.name.startswith(f"{kernel.forward}.{SUMS}"):
            lays = lays | {"between": True}
        return lays | (TRAINED_LAYS.get(kernel.family, {}) if trains else {})

    kernels = tuple(
        dataclasses.replace(
            kernel,
            attrs=frozen(
                {
                    **kernel.attrs,
                    **laid(kernel),
                    **({} if kernel.name in plain else links.get(kernel.name, {})),
                }
            ),
        )
        for kernel in graph.kernels
    )
    return dataclasses.replace(graph, kernels=kernels)


def without_program(graph: KernelGraph) -> set[str]:
    """Return the names of the forward kernels that have no program: those of :data:`WITHOUT_PROGRAM`, the work on
    rows of tables that the host does in a simulation, and those of :func:`plain_priced`."""
    found = {kernel.name for kernel in graph.kernels if kernel.family in WITHOUT_PROGRAM}
    return found | {kernel.name for kernel in looked_up(graph)} | plain_priced(graph)


def with_programs(graph: KernelGraph) -> KernelGraph:
    """Return the graph without the kernels that have no program.

    Their outputs become inputs of the graph; readers of a dropout read its input. Dropout of scores in attention has no
    program either. The update of a table stays if a layer has its weight too.
    """
    aside = without_program(graph)
    if not (aside or any(kernel.attrs.get("dropout", 0.0) for kernel in graph.kernels)):
        return graph
    kept = undropped(graph.kernels)
    rest = [kernel for kernel in kept if not {kernel.name, kernel.forward} & aside]
    shared = {name for kernel in rest if kernel.phase is Phase.FORWARD for name in kernel.parameters}
    rest += [
        kernel
        for kernel in kept
        if kernel.forward in aside and kernel.phase is Phase.UPDATE and shared.intersection(kernel.parameters)
    ]
    tensors = dict(graph.tensors)
    for kernel in graph.kernels:
        if kernel.name in aside and kernel.family != "dropout":
            for name in kernel.outputs:
                tensors[name] = dataclasses.replace(tensors[name], kind=TensorKind.INPUT)
    return dataclasses.replace(graph, kernels=tuple(rest), tensors=frozen(tensors))


def _prepared(graph: KernelGraph, passes: tuple[Pass, ...]) -> KernelGraph:
    """Return the graph of the kernels that run on the fabric; in training, gradients are derived from it
    again."""
    if not graph.training:
        return reduce(lambda found, one: one(found), passes, graph)
    forward = forward_graph(graph)
    found = reduce(lambda found, one: one(found), passes, forward)
    if found is forward:
        return graph
    stated = {key: str(graph.facts[key]) for key in ("optimizer", "recompute") if key in graph.facts}
    return add_training(found, **stated)


def _trained_rows(graph: KernelGraph) -> dict[str, dict[str, object]]:
    """Return the layout attributes of dense layers in a network that trains, by kernel.

    The cost of the weight gradient includes all backward work of a layer, and all passes have the same streams. So
    each states the fused operations (`finished`), whether gradients of the inputs follow (`passes_on`), the most
    streams of inputs and results, and the readers of the result.
    """
    out: dict[str, dict[str, object]] = {}
    most = trained_bundles(as_links_see(graph))
    back = [kernel for kernel in graph.kernels if kernel.phase in BACKWARD]
    for layer in graph.kernels:
        if layer.family != "gemm" or layer.phase is not Phase.FORWARD or not layer.inputs:
            continue
        passes = [kernel for kernel in back if kernel.forward == layer.name]
        of_weights = [kernel for kernel in passes if kernel.phase is Phase.WEIGHT_GRADIENT]
        products = [kernel for kernel in passes if kernel.family == "gemm"]
        if len(of_weights) != 1 or of_weights[0] not in products:
            continue  # a layer that does not train as regions do: the check of its kind says so
        stated = {
            "trained_rows": True,
            "finished": ",".join(items_of(layer)),
            "passes_on": len(products) > 1,
            "most_bundles": most[layer.inputs[0]],
            "most_results": most[layer.outputs[0]],
            "readers": max(1, readers_of(graph, layer.outputs[0])),
        }
        out |= {kernel.name: stated for kernel in (layer, *products)}
    return out
