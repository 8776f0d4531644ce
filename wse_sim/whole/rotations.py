"""Rotations of positions as elementwise work on tokens, and products whose results are taken head by head in parts.

A graph leaves out views, so a rotation of T tokens of H heads of d features has a result (H, T, d) and may read a part of a
product. On the fabric queries and keys travel token by token, each with all heads, as products make them::

    y = x C + turned(x) S         C, S: cosines, and sines with the signs of turned(x), (T, H d); 1 and 0 behind the turned features

The tables rest on the cores that have the tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from wse_sim.frontend.rotations import TABLES
from wse_sim.graph import Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.access import Runs, channels_of
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.regions.leading_rows import TOKEN_AXES
from wse_sim.whole.split_products import part_of_product, product_splits

ROTARY = "rotary"


def with_rotations(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with rotations and norms of heads on tokens, and with a product for every part of a result that
    attention, rotations and norms take; a note states them."""
    tensors, kernels = dict(graph.tensors), list(graph.kernels)
    count = 0
    for place, kernel in enumerate(kernels):
        if not _is_of_heads(graph, kernel):
            continue
        _, first, end = kernel.access.heads[0]
        out = tensors[kernel.outputs[0]]
        tokens = out.elements // graph.samples // (end - first)
        tensors[out.name] = dataclasses.replace(out, shape=(graph.samples, tokens, end - first))
        if kernel.family != ROTARY:
            continue
        names = tuple(kernel.name + table for table in TABLES)
        for name in names:
            tensors[name] = dataclasses.replace(
                out, name=name, shape=(tokens, end - first), kind=TensorKind.CONSTANT, per_sample=False
            )
        kernels[place] = dataclasses.replace(kernel, parameters=names)
        count += 1
    if tensors == dict(graph.tensors):
        return by_heads(graph)
    note = f"{count} rotation{'s' * (count > 1)} of positions work on tokens as products make them"
    return by_heads(with_kernels(graph, kernels, tensors, *([note] if count else [])))


def _is_of_heads(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a kernel is a rotation or a norm that works on heads, whose operand, pairs and readers are known."""
    is_rotary = kernel.family == ROTARY and not kernel.parameters and bool(kernel.attrs.get("block"))
    if not (kernel.access.heads and (is_rotary or kernel.family == "norm")):
        return False
    readers = [one for one in graph.kernels if kernel.outputs[0] in one.inputs]
    is_output = graph.tensors[kernel.outputs[0]].kind is TensorKind.OUTPUT
    return bool(readers) and not is_output and all(map(_takes_heads, readers))


def _takes_heads(kernel: Kernel) -> bool:
    """Return whether it is known which features a kernel takes head by head."""
    return kernel.family in ("attention", ROTARY, "norm") and bool(kernel.access.heads)


def by_heads(graph: KernelGraph) -> KernelGraph:
    """Return the graph with one product for every part of a result, if attention, rotations and norms take its parts head by head.

    The parameters of the parts are named as slices: ``qkv.weight[0:32]``, or ``qkv.weight[part 0]`` where heads are not next to one
    another.
    """
    tensors, kernels, split = _apart(graph), list(graph.kernels), 0
    for product in graph.kernels:
        whole = product.outputs[0]
        readers = [one for one in kernels if whole in one.inputs]
        if not product_splits(graph, product) or not all(map(_takes_heads, readers)):
            continue
        taken = {
            runs
            for one in readers
            for (name, *_), runs in zip(one.access.heads, _runs(one), strict=True)
            if name == whole
        }
        ranges = sorted(taken)
        channels = np.concatenate([channels_of(runs) for runs in ranges]) if ranges else np.zeros(0)
        is_whole = ranges == [((0, int(product.dims["n"]), 1),)]
        if is_whole or not np.array_equal(np.sort(channels), np.arange(int(product.dims["n"]))):
            continue
        parts = {cut: part_of_product(product, f"part{i}", cut, tensors) for i, cut in enumerate(ranges)}
        place = kernels.index(product)
        kernels[place : place + 1] = parts.values()
        for reader in readers:
            at = next(i for i, one in enumerate(kernels) if one.name == reader.name)
            kernels[at] = _reads_parts(kernels[at], whole, parts, tensors)
        split += 1
    for place, kernel in enumerate(kernels):
        heads = kernel.access.heads
        is_known = kernel.family != "norm" or len(tensors[kernel.outputs[0]].shape) == TOKEN_AXES
        if (
            is_known
            and heads
            and not kernel.access.apart
            and all(_is_whole(tensors[name], first, end) for name, first, end in heads)
        ):
            inputs = tuple(name for name, _, _ in heads)
            access = kernel.access.without_views()
            kernels[place] = dataclasses.replace(kernel, inputs=inputs, access=access)
    if kernels == list(graph.kernels) and tensors == dict(graph.tensors):
        return graph
    what = f"{split} products are" if split > 1 else "1 product is"
    notes = [f"{what} taken in parts; on the fabric every part is a layer"] if split else []
    return with_kernels(graph, kernels, tensors, *notes)


def _apart(graph: KernelGraph) -> dict[str, Tensor]:
    """Return the tensors of a graph; results of attention whose samples and heads are one dimension have one for each."""
    tensors = dict(graph.tensors)
    for kernel in graph.kernels:
        out, dims = tensors[kernel.outputs[0]], kernel.dims
        if kernel.family == "attention" and out.shape[:-2] == (dims["b"] * dims["heads"],) and out.elements:
            shape = int(dims["b"]), int(dims["heads"]), *out.shape[1:]
            tensors[out.name] = dataclasses.replace(out, shape=shape)
    return tensors


def _runs(kernel: Kernel) -> Sequence[Runs]:
    """Return the features that a kernel takes of its operands, in the order of heads."""
    return kernel.access.apart or [((first, end - first, 1),) for _, first, end in kernel.access.heads]


def _reads_parts(reader: Kernel, whole: str, parts: dict[Runs, Kernel], tensors: dict[str, Tensor]) -> Kernel:
    """Return the reader of the parts of a product."""
    heads, apart = list[tuple[str, int, int]](), list[Runs]()
    for (name, first, end), runs in zip(reader.access.heads, _runs(reader), strict=True):
        if name == whole:
            heads.append((parts[runs].outputs[0], 0, end - first))
            apart.append(((0, end - first, 1),))
        else:
            heads.append((name, first, end))
            apart.append(runs)
    is_next = all(len(runs) == 1 and runs[0][2] == 1 for runs in apart)
    access = dataclasses.replace(reader.access, heads=tuple(heads), apart=() if is_next else tuple(apart))
    return dataclasses.replace(reader, access=access)


def _is_whole(tensor: Tensor, first: int, end: int) -> bool:
    """Return whether a range has all features of the tokens (samples, tokens, features) of a tensor."""
    return len(tensor.shape) == TOKEN_AXES and (first, end) == (0, tensor.shape[-1])
