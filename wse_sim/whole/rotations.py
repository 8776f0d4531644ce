"""Rotations of positions as elementwise work on tokens, and products whose results are taken head by head in parts.

A graph leaves out views, so a rotation of T tokens of H heads of d features has a result (H, T, d) and may read a part of a
product. On the fabric queries and keys travel token by token, each with all heads, as products make them::

    y = x C + turned(x) S         C, S: cosines, and sines with the signs of turned(x), (T, H d); 1 and 0 behind the turned features

The tables rest on the cores that have the tokens.
"""

from __future__ import annotations

import dataclasses

from wse_sim.frontend.rotations import TABLES
from wse_sim.graph import Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.regions.leading_rows import TOKEN_AXES
from wse_sim.whole.split_products import part_of_product, product_splits

ROTARY = "rotary"


def with_rotations(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with rotations on tokens, and with a product for every part of a result that attention
    and rotations take; a note states them."""
    if not any(_turns(graph, kernel) for kernel in graph.kernels):
        return by_heads(graph)
    tensors, kernels = dict(graph.tensors), list(graph.kernels)
    count = 0
    for place, kernel in enumerate(kernels):
        if not _turns(graph, kernel):
            continue
        _, first, end = kernel.access.heads[0]
        out = tensors[kernel.outputs[0]]
        tokens = out.elements // graph.samples // (end - first)
        tensors[out.name] = dataclasses.replace(out, shape=(graph.samples, tokens, end - first))
        names = tuple(kernel.name + table for table in TABLES)
        for name in names:
            tensors[name] = dataclasses.replace(
                out, name=name, shape=(tokens, end - first), kind=TensorKind.CONSTANT, per_sample=False
            )
        kernels[place] = dataclasses.replace(kernel, parameters=names)
        count += 1
    note = f"{count} rotation{'s' * (count > 1)} of positions work on tokens as products make them"
    return by_heads(with_kernels(graph, kernels, tensors, note))


def _turns(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether a kernel is a rotation whose operand, pairs and readers are known."""
    if (
        kernel.family != ROTARY
        or kernel.parameters
        or not (kernel.attrs.get("block") and kernel.access.heads)
    ):
        return False
    readers = [one for one in graph.kernels if kernel.outputs[0] in one.inputs]
    return bool(readers) and all(one.family == "attention" and one.access.heads for one in readers)


def by_heads(graph: KernelGraph) -> KernelGraph:
    """Return the graph with one product for every part of a result, if attention and rotations take its parts head by head.

    The parameters of the parts are named as slices: ``qkv.weight[0:32]``.
    """
    tensors, kernels, split = dict(graph.tensors), list(graph.kernels), 0
    for product in graph.kernels:
        whole = product.outputs[0]
        readers = [one for one in graph.kernels if whole in one.inputs]
        if not product_splits(graph, product) or not all(one.access.heads for one in readers):
            continue
        taken = {(first, end) for one in readers for name, first, end in one.access.heads if name == whole}
        ranges = sorted(taken)
        ends = [0, *(end for _, end in ranges)]
        if len(ranges) < 2 or [first for first, _ in ranges] != ends[:-1] or ends[-1] != product.dims["n"]:
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
        if heads and all(_is_whole(tensors[name], first, end) for name, first, end in heads):
            inputs = tuple(name for name, _, _ in heads)
            access = kernel.access.without_views()
            kernels[place] = dataclasses.replace(kernel, inputs=inputs, access=access)
    if kernels == list(graph.kernels):
        return graph
    what = f"{split} products are" if split > 1 else "1 product is"
    notes = [f"{what} taken in parts; on the fabric every part is a layer"] if split else []
    return with_kernels(graph, kernels, tensors, *notes)


def _reads_parts(
    reader: Kernel, whole: str, parts: dict[tuple[int, int], Kernel], tensors: dict[str, Tensor]
) -> Kernel:
    """Return the reader of the parts of a product."""
    heads = tuple(
        (parts[first, end].outputs[0], 0, end - first) if name == whole else (name, first, end)
        for name, first, end in reader.access.heads
    )
    return dataclasses.replace(reader, access=dataclasses.replace(reader.access, heads=heads))


def _is_whole(tensor: Tensor, first: int, end: int) -> bool:
    """Return whether a range has all features of the tokens (samples, tokens, features) of a tensor."""
    return len(tensor.shape) == TOKEN_AXES and (first, end) == (0, tensor.shape[-1])
