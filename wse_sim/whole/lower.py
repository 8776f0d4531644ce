"""From a kernel graph to the graph of the programs that run on the fabric: passes, and the layout of each kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial, reduce

from wse_sim.frontend.training import add_training
from wse_sim.graph import Kernel, KernelGraph, Phase, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.covered import is_chain
from wse_sim.whole.factors import with_affine, with_scales
from wse_sim.whole.front import (
    behind_host,
    forward_graph,
    with_rows_of_host,
    with_tokens_first,
    without_dropout,
    without_logarithm,
)
from wse_sim.whole.packed import turned, unpacked
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.depthwise import Depthwise
from wse_sim.whole.regions.fused import items_of
from wse_sim.whole.regions.norm import affine_parts
from wse_sim.whole.side_by_side import PACKED, link_attributes, packed_tensors
from wse_sim.whole.spelled import with_steps
from wse_sim.whole.summed import summed_apart
from wse_sim.whole.tokens import with_pooled_tokens

Pass = Callable[[KernelGraph], KernelGraph]
REWRITES: tuple[Pass, ...] = (
    with_pooled_tokens,
    with_affine,
    with_scales,
    with_steps,
    turned,
    unpacked,
    summed_apart,
)
"""What leaves all work on the wafer, in this order; a pass that finds nothing to do returns the same graph."""
TRAINING_REWRITES = tuple(one for one in REWRITES if one is not with_affine)
"""The same for the forward part of a graph that trains."""
PASSES: tuple[Pass, ...] = (with_tokens_first, behind_host, with_rows_of_host, *REWRITES)
"""What is done to a graph of inference that is stepped."""
TRAINING_PASSES: tuple[Pass, ...] = (
    with_tokens_first,
    without_dropout,
    without_logarithm,
    partial(behind_host, trains=True),
    with_rows_of_host,
    *TRAINING_REWRITES,
)
"""What is done to the forward part of a graph that trains and is stepped."""

PRODUCTS = ("gemm", "conv2d")
"""Families whose inputs lie over the rows of a region."""
BACKWARD = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)

LAYS: dict[str, dict[str, object]] = {
    "attention": {"pairs": True},
    "layout": {"joined": True},
    "softmax": {"whole": True},
    "conv2d": {"unfolded": True},
    "gemm": {"word_rows": True},
    "pool2d": {"apart": True},
    **{family: {"in_words": True} for family in POINTWISE},
}
"""Attributes of kernels that are on the fabric in one of several ways."""
TRAINED_LAYS: dict[str, dict[str, object]] = {
    "attention": {"collected": True},
    "generated": {"trains": True},
    "norm": {"whole": True},
    "pool2d": {"trains": True},
}
"""Further ones of kernels that train."""
SUMS = "dsum"
"""Name suffix of kernels that sum the gradients of a tensor with several readers."""
WITHOUT_PROGRAM = ("embedding", "dropout", "cross_entropy")
"""Families of which no program is composed: work of the host, or of the loss that a training run adds."""
MEETS = PRODUCTS
"""Families whose training cost includes the derivative of the fused activation."""


def inputs_over_rows(graph: KernelGraph, *, streamed: bool = False) -> KernelGraph:
    """The graph with its kernels laid as they are on the fabric, so that the plan prices what is stepped.

    Products have their inputs over the rows of their regions, their outputs over the columns.  The gradient of the inputs
    reads the same weights, so it has the gradients of the outputs over the columns.  Attention has queries over the rows,
    keys over the columns; in training, a norm has its rows on one column of cores; in inference, convolutions have whole words
    and finish on their last row.  A product that makes queries, keys and values at once becomes three
    (:mod:`wse_sim.whole.packed`), and a convolution with a residual sum two kernels (:mod:`wse_sim.whole.summed`).

    With `streamed` weights a kernel has the whole wafer and no region, so nothing of regions is priced.
    """
    return laid_graph(_prepared(graph, TRAINING_PASSES if graph.training else PASSES), streamed=streamed)


def priced_graph(graph: KernelGraph) -> KernelGraph:
    """As :func:`inputs_over_rows`, with all work on the wafer: look-ups, dropout and a loss of the model stay, priced plain.

    A graph that has been laid is returned as it is.
    """
    if is_laid(graph):
        return graph
    return laid_graph(_prepared(graph, TRAINING_REWRITES if graph.training else REWRITES))


def is_laid(graph: KernelGraph) -> bool:
    """Whether the kernels of a graph have the layouts of their programs on the fabric already."""
    laid = ("orientation", *(name for lays in LAYS.values() for name in lays))
    return any(name in kernel.attrs for kernel in graph.kernels for name in laid)


def laid_graph(graph: KernelGraph, *, streamed: bool = False) -> KernelGraph:
    """The attributes that :func:`inputs_over_rows` gives, on the kernels of `graph` as they are: none is split or left out."""
    forward = {kernel.name: kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD}
    # A chain of dense layers with one row a sample has a program of its own, and networks that train as well.
    is_network = not streamed and not is_chain(with_programs(graph))
    in_regions = not graph.training and is_network
    dense = _trained_rows(graph) if graph.training and is_network else {}
    links = link_attributes(graph) if in_regions else {}
    packed = packed_tensors(graph) if is_network else set()
    makers = {kernel.name for kernel in forward.values() if packed.intersection(kernel.outputs)}

    def trained(kernel: Kernel) -> dict[str, object]:
        if not graph.training or kernel.family != "conv2d":
            return dense.get(kernel.name, {})
        owner = forward.get(kernel.forward, kernel)
        return {"trains": True, "has_bias": "bias" in items_of(owner)}

    def laid(kernel: Kernel) -> dict[str, object]:
        if kernel.family in PRODUCTS:
            orientation = "nk" if kernel.phase is Phase.INPUT_GRADIENT else "kn"
            held = LAYS.get(kernel.family, {}) if in_regions else {}
            if in_regions and Depthwise.is_for(kernel):
                held = {"apart": True}
            if {kernel.name, kernel.forward} & makers and kernel.family == "gemm":
                held = {**held, "layers": PACKED}
            return {"orientation": orientation, **held, **(trained(kernel) if is_network else {})}
        # A pass back has no parameters of its own: those of the kernel whose name it continues.
        passed = kernel if kernel.name in forward else forward.get(kernel.name.rpartition(".")[0], kernel)
        lays = LAYS.get(kernel.family, {}) | (affine_parts(passed) if passed.family == kernel.family else {})
        owner = forward.get(kernel.forward) if kernel.family == "activation" else None
        if is_network and owner is not None and owner.family in MEETS:
            lays = lays | {"met": True}
        if is_network and kernel.name.startswith(f"{kernel.forward}.{SUMS}"):
            lays = lays | {"between": True}
        return lays | (TRAINED_LAYS.get(kernel.family, {}) if graph.training else {})

    kernels = tuple(
        dataclasses.replace(
            kernel, attrs=frozen({**kernel.attrs, **laid(kernel), **links.get(kernel.name, {})})
        )
        for kernel in graph.kernels
    )
    return dataclasses.replace(graph, kernels=kernels)


def with_programs(graph: KernelGraph) -> KernelGraph:
    """The kernels that may have programs: what those of :data:`WITHOUT_PROGRAM` make comes in; dropout is passed by."""
    aside = {kernel.name for kernel in graph.kernels if kernel.family in WITHOUT_PROGRAM}
    if not aside:
        return graph
    passed = {kernel.outputs[0]: kernel.inputs[0] for kernel in graph.kernels if kernel.family == "dropout"}

    def source(name: str) -> str:
        while name in passed:
            name = passed[name]
        return name

    kernels = tuple(
        dataclasses.replace(kernel, inputs=tuple(map(source, kernel.inputs)))
        for kernel in graph.kernels
        if not {kernel.name, kernel.forward} & aside
    )
    tensors = dict(graph.tensors)
    for kernel in graph.kernels:
        if kernel.name in aside and kernel.family != "dropout":
            for name in kernel.outputs:
                tensors[name] = dataclasses.replace(tensors[name], kind=TensorKind.INPUT)
    return dataclasses.replace(graph, kernels=kernels, tensors=frozen(tensors))


def _prepared(graph: KernelGraph, passes: tuple[Pass, ...]) -> KernelGraph:
    """The graph of the kernels that run on the fabric; of one that trains, the gradients follow from them by rule."""
    if not graph.training:
        return reduce(lambda found, one: one(found), passes, graph)
    forward = forward_graph(graph)
    found = reduce(lambda found, one: one(found), passes, forward)
    if found is forward:
        return graph
    return add_training(
        found, optimizer=str(graph.facts["optimizer"]), recompute=str(graph.facts["recompute"])
    )


def _trained_rows(graph: KernelGraph) -> dict[str, dict[str, object]]:
    """What the passes of dense layers say of themselves in a network that trains, by kernel.

    The pass with the weight gradient counts all that happens backward, so it knows the work on the outputs, and whether
    gradients of the inputs follow.
    """
    out: dict[str, dict[str, object]] = {}
    back = [kernel for kernel in graph.kernels if kernel.phase in BACKWARD]
    for layer in graph.kernels:
        if layer.family != "gemm" or layer.phase is not Phase.FORWARD:
            continue
        passes = [kernel for kernel in back if kernel.forward == layer.name]
        of_weights = [kernel for kernel in passes if kernel.phase is Phase.WEIGHT_GRADIENT]
        products = [kernel for kernel in passes if kernel.family == "gemm"]
        if len(of_weights) != 1 or of_weights[0] not in products:
            continue  # a layer that does not train as regions do: the check of its kind says so
        out |= {kernel.name: {"trained_rows": True} for kernel in (layer, *products)}
        finished = ",".join(items_of(layer))
        out[of_weights[0].name] |= {"finished": finished, "passes_on": len(products) > 1}
    return out
