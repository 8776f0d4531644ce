"""Graph passes that move work to the host, and passes that drop dropout and the final logarithm.

A token model begins with table look-ups: rows of embeddings plus rows of positions. The host looks them up
and sends the sums, so the graph on the fabric starts after them, with an input of (tokens, features). The
tables themselves do not train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import ModelError
from wse_sim.frontend.fusions import DraftGraph, Epilogue
from wse_sim.frontend.orders import ROWS
from wse_sim.frontend.repeats import find_repeats
from wse_sim.graph import PLAIN, Derived, Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.regions.contract import POINTWISE, is_pointwise

LOGARITHM = "logarithm of the loss"
CROSS_ENTROPY, SQUARED = "cross entropy", "squared error"
LOOKED_UP = "embedding"
OF_HOST = (LOOKED_UP, "indexed", "layout", "scan", *POINTWISE)
"""Families that the host computes when their inputs come from look-ups."""


def behind_host(graph: KernelGraph, *, trains: bool = False) -> KernelGraph:
    """Return the forward graph that starts after the table look-ups of the host; a note names the tables.

    All leading kernels of :data:`OF_HOST` move to the host if together they produce exactly one tensor;
    otherwise the graph is returned unchanged. The tables do not train; if the graph `trains`, a layer whose weight is also a table
    gets a copy of it.
    """
    front = looked_up(graph)
    rest = [kernel for kernel in graph.kernels if kernel not in front]
    made = {name for kernel in front for name in kernel.outputs}
    between = {name for kernel in rest for name in kernel.inputs if name in made}
    leaves = any(graph.tensors[name].kind is TensorKind.OUTPUT for name in made)
    if len(between) != 1 or leaves:
        return graph
    name = between.pop()
    tensors = dict(graph.tensors)
    tensors[name] = dataclasses.replace(tensors[name], kind=TensorKind.INPUT, per_sample=True)
    looked = ", ".join(f"'{table}'" for table in _tables(graph, front))
    note = f"the host looks up {looked} and sends '{name}' to the fabric"
    if not trains:
        return with_kernels(graph, rest, tensors, note)
    rest, copies = _with_copies(rest, tensors, {*_tables(graph, front)})
    return with_kernels(graph, rest, tensors, f"{note}, and these tables do not train", *copies)


def _with_copies(
    kernels: Iterable[Kernel], tensors: dict[str, Tensor], tables: set[str]
) -> tuple[list[Kernel], list[str]]:
    """Return kernels that have copies of `tables` as weights, which are added to `tensors`, and a note for each."""
    found, notes = list[Kernel](), list[str]()
    for kernel in kernels:
        names = {one: f"{kernel.name}.{one.rpartition('.')[2]}" for one in kernel.parameters if one in tables}
        for one, name in names.items():
            derived = Derived("copy", tensors[one].derived or one, module=name)
            tensors[name] = dataclasses.replace(tensors[one], name=name, derived=derived)
            notes.append(
                f"'{kernel.name}' has table '{one}' as its weight; on the fabric it trains a copy, '{name}', "
                "without the gradient of the look-ups"
            )
        parameters = tuple(names.get(one, one) for one in kernel.parameters)
        access = kernel.access.renamed(names.get)
        found.append(dataclasses.replace(kernel, parameters=parameters, access=access) if names else kernel)
    return found, notes


def _tables(graph: KernelGraph, front: Iterable[Kernel]) -> list[str]:
    """Return the parameters of the look-ups in `front`, in order."""
    names = (name for kernel in front for name in kernel.parameters)
    return [name for name in dict.fromkeys(names) if graph.tensors[name].kind is TensorKind.PARAMETER]


def with_rows_of_host(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which the host rearranges the input, if its only reader is a product or
    norm of a view; a note states it.

    The host sends rows of K features for a product, and rows of the norm's width for a norm. Patches of an
    image are an example.
    """
    inputs = [name for name, tensor in graph.tensors.items() if tensor.kind is TensorKind.INPUT]
    readers = [kernel for kernel in graph.kernels if set(kernel.inputs) & set(inputs)]
    if len(inputs) != 1 or len(readers) != 1 or readers[0].access.reordered != (inputs[0],):
        return graph
    reader = readers[0]
    access = reader.access
    sizes = {"norm": ("rows", "cols"), "gemm": ("m", "k")}.get(reader.family)
    if sizes is None or reader.inputs.count(inputs[0]) > 1:
        return graph
    if not access.view or access.order or access.transposed:
        return graph
    rows, features = (int(reader.dims[size]) for size in sizes)
    if rows % graph.samples:
        return graph
    name, whole = reader.name + ROWS, graph.tensors[inputs[0]]
    tensors = dict(graph.tensors)
    shape = (graph.samples, rows // graph.samples, features)
    tensors[name] = dataclasses.replace(whole, name=name, shape=shape)
    taken = tuple(name if one == inputs[0] else one for one in reader.inputs)
    changed = dataclasses.replace(reader, inputs=taken, access=access.without_views())
    kernels = [changed if kernel is reader else kernel for kernel in graph.kernels]
    size = f"{shape[1]} rows of {features}"
    note = f"the host rearranges '{inputs[0]}' as '{reader.name}' takes it, and sends {size} to the fabric"
    return with_kernels(graph, kernels, tensors, note)


def with_tokens_first(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with one sample if attention shows that the first dimension holds tokens (a
    note states this).

    The frontend counts samples by the first dimension of the input. For inputs (tokens, 1, features) and
    (tokens, features), which many PyTorch modules take, that is the number of tokens.
    """
    attention = [kernel for kernel in graph.kernels if kernel.family == "attention"]
    if graph.samples == 1 or not attention:
        return graph
    if any((kernel.dims["b"], kernel.dims["q"]) != (1, graph.samples) for kernel in attention):
        return graph
    kernels = [
        dataclasses.replace(kernel, sample_dim="b") if kernel.family == "attention" else kernel
        for kernel in graph.kernels
    ]
    note = f"the first dimension holds the {graph.samples} tokens of one sample"
    return dataclasses.replace(with_kernels(graph, kernels, dict(graph.tensors), note), samples=1)


def looked_up(graph: KernelGraph) -> list[Kernel]:
    """Return the forward kernels of the host's families that depend only on the input and on each other; none
    without a table look-up among them."""
    known = {name for name, tensor in graph.tensors.items() if tensor.kind is TensorKind.INPUT}
    found = []
    for kernel in graph.kernels:
        is_forward = kernel.phase is Phase.FORWARD and kernel.family in OF_HOST
        if is_forward and known.issuperset(kernel.inputs):
            found.append(kernel)
            known.update(kernel.outputs)
    return found if any(kernel.family == LOOKED_UP for kernel in found) else []


def without_dropout(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph without dropout; residual sums after a dropout are fused into their products
    (a note states this)."""
    dropped = {kernel.outputs[0]: kernel.inputs[0] for kernel in graph.kernels if kernel.family == "dropout"}
    if not dropped and not any(kernel.attrs.get("dropout", 0.0) for kernel in graph.kernels):
        return graph
    tensors, sources = dict(graph.tensors), {name: source_of(dropped, name) for name in dropped}
    for name, source in sources.items():
        if tensors[name].kind is TensorKind.OUTPUT:
            tensors[source] = dataclasses.replace(tensors[source], kind=TensorKind.OUTPUT)
    note = "dropout is left out: the whole fabric trains without it"
    return _summed(with_kernels(graph, undropped(graph.kernels), tensors, note), set(sources.values()))


def undropped(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return the kernels without dropout, also of the scores of attention."""
    kernels = tuple(kernels)
    dropped = {kernel.outputs[0]: kernel.inputs[0] for kernel in kernels if kernel.family == "dropout"}
    return [
        dataclasses.replace(kernel, attrs=frozen({**kernel.attrs, "dropout": 0.0}))
        if "dropout" in kernel.attrs
        else kernel
        for kernel in passed_over(kernels, dropped)
    ]


def passed_over(kernels: Iterable[Kernel], sources: Mapping[str, str]) -> list[Kernel]:
    """Return the kernels without those whose result is in `sources`; its readers read the source in its place."""

    def source(name: str) -> str:
        return source_of(sources, name)

    return [
        dataclasses.replace(
            kernel, inputs=tuple(map(source, kernel.inputs)), access=kernel.access.renamed(source)
        )
        for kernel in kernels
        if sources.keys().isdisjoint(kernel.outputs)
    ]


def source_of(sources: Mapping[str, str], name: str) -> str:
    """Return the tensor from which another one follows, over any number of steps."""
    while name in sources:
        name = sources[name]
    return name


def without_logarithm(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph without a final log softmax, which the cross entropy of the loss absorbs (a
    note states this).

    The cross entropy of log softmax(x) equals that of x. The fact :data:`LOGARITHM` names the kernel whose
    logarithm the host applies to the outputs.
    """
    last = [
        kernel for kernel in graph.kernels if kernel.family == "softmax" and kernel.attrs.get("log", False)
    ]
    outputs = [name for name, tensor in graph.tensors.items() if tensor.kind is TensorKind.OUTPUT]
    if len(last) != 1 or list(last[0].outputs) != outputs or last[0].access.reordered:
        return graph
    logits = last[0].inputs[0]
    shapes = [graph.tensors[name].shape for name in (logits, *outputs)]
    if shapes[0] != shapes[1] or any(logits in k.inputs for k in graph.kernels if k is not last[0]):
        return graph
    tensors = dict(graph.tensors)
    tensors[logits] = dataclasses.replace(tensors[logits], kind=TensorKind.OUTPUT)
    kernels = [kernel for kernel in graph.kernels if kernel is not last[0]]
    note = f"the loss (cross entropy) does the work of '{last[0].name}', and the fabric sends the input of that kernel"
    found = with_kernels(graph, kernels, tensors, note)
    return dataclasses.replace(found, facts=frozen({**graph.facts, LOGARITHM: last[0].name}))


def loss_of(graph: KernelGraph, wanted: str | None) -> str:
    """Return the loss of a training run: `wanted` or squared error; always cross entropy if it absorbed the
    model's logarithm.

    Raises
    ------
    ModelError
        If another loss is wanted for a model whose logarithm was absorbed.
    """
    if LOGARITHM not in graph.facts:
        return wanted or SQUARED
    if wanted not in (None, CROSS_ENTROPY):
        raise ModelError(
            f"the loss is {wanted}, and '{graph.facts[LOGARITHM]}' of this model trains on the whole fabric as a part of the "
            f"{CROSS_ENTROPY} alone; take that, or leave '{graph.facts[LOGARITHM]}' out"
        )
    return CROSS_ENTROPY


def finished(graph: KernelGraph, outputs: NDArray[np.float16]) -> NDArray[np.float16]:
    """Return the outputs of a training run as the model defines them: the host applies the log softmax that
    the loss absorbed."""
    if LOGARITHM not in graph.facts:
        return outputs
    wide = outputs.astype(np.float32)
    wide -= wide.max(axis=-1, keepdims=True)
    return (wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))).astype(np.float16)


def _summed(graph: KernelGraph, dropped: set[str]) -> KernelGraph:
    """Fuse residual sums into the products of their operands where only a dropout separated them."""
    outputs = {name for name, tensor in graph.tensors.items() if tensor.kind is TensorKind.OUTPUT}
    draft = DraftGraph({kernel.name: kernel for kernel in graph.kernels}, dict(graph.tensors), outputs, True)
    for kernel in graph.kernels:
        reader = draft.only_reader(kernel) if kernel.name in draft.kernels else None
        if (
            reader is None
            or reader.access != PLAIN
            or kernel.family != "gemm"
            or kernel.outputs[0] not in dropped
        ):
            continue
        Epilogue().apply(draft, draft.kernels[kernel.name])
    return with_kernels(graph, draft.in_order(), draft.tensors)


def forward_graph(graph: KernelGraph) -> KernelGraph:
    """Return the forward part of a training graph."""
    forward = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    return dataclasses.replace(with_kernels(graph, forward, dict(graph.tensors)), training=False)


def for_every_sample(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which elementwise work reads tensors in the shape that it writes: as many samples of a tensor whose
    samples are all equal (rows of a table of positions, say), and tokens of samples where one dimension has the tokens of all."""
    tensors, before = dict(graph.tensors), dict[str, Tensor]()
    while tensors != before:  # one shape may follow from another
        before = dict(tensors)
        for kernel in graph.kernels:
            if not (is_pointwise(kernel.family) or kernel.family == "dropout"):
                continue
            shape = tensors[kernel.outputs[0]].shape
            for name in kernel.inputs:
                if (own := tensors[name]).shape != shape and own.shape == (1, *shape[1:]):
                    tensors[name] = dataclasses.replace(own, shape=shape)
            names = [one for one in (*kernel.inputs, *kernel.outputs) if one not in kernel.access.reordered]
            ways = [
                tensors[one].shape
                for one in names
                if tensors[one].shape[:1] == (graph.samples,) and len(tensors[one].shape) == 3
            ]
            for name in names if ways else ():
                samples, tokens, features = ways[0]
                if tensors[name].shape == (samples * tokens, features) and tokens > 1:
                    tensors[name] = dataclasses.replace(tensors[name], shape=ways[0])
    return graph if tensors == dict(graph.tensors) else dataclasses.replace(graph, tensors=frozen(tensors))


def with_kernels(
    graph: KernelGraph, kernels: Iterable[Kernel], tensors: dict[str, Tensor], *notes: str
) -> KernelGraph:
    """Return the graph with these kernels and the tensors that they use."""
    kernels = tuple(kernels)
    read = {name for kernel in kernels for name in (*kernel.inputs, *kernel.outputs, *kernel.parameters)}
    kept = {name: tensor for name, tensor in tensors.items() if name in read}
    return dataclasses.replace(
        graph,
        kernels=kernels,
        tensors=frozen(kept),
        repeats=find_repeats(kernels, kept),
        notes=(*graph.notes, *notes),
    )
