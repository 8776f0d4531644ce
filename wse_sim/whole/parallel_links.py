"""Limit the number of parallel streams of each tensor, before regions have their shapes.

A tensor travels in bundles whose words per token differ by at most one, and all regions at its ends use the
same number. Attention has one per band of heads (attribute `bands`) if dense layers are at its other ends.
Dense layers, norms, elementwise work and rows before the tokens take as many as the pace needs, up to one per word of a
token; the operands and the result of all but dense layers have the same number, which divides the words of a
token that a norm reads. The plan prices regions accordingly (attributes `link_words`, `most_bundles`,
`token_words`): a link takes `wavelet_cycles` per word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import gcd
from types import MappingProxyType

import networkx as nx

from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.host_part import looked_up
from wse_sim.whole.regions.contract import (
    IMAGES,
    PAIR,
    POINTWISE,
    features_of,
    has_work,
    heads_of,
    is_image,
    is_pointwise,
    token_words,
)
from wse_sim.whole.regions.fused_work import items_of

Splits = Callable[[Kernel, str], bool]
"""Whether a kernel takes or gives a tensor in bundles."""
OF_ROWS = ("norm", "softmax")
"""Families whose cores share a token in equal parts, so that the number of links divides its words."""
ANY_LINKS = "dropout"
"""Family that takes and gives a tensor in any number of bundles, as kernels with plain prices do."""
ONE_LINK = "reduce"
"""Family that replaces that of a frozen layer, which takes and gives every tensor on one link."""
WITHOUT_PROGRAM = ("embedding", ANY_LINKS, "cross_entropy")
"""Families without a fabric program: the host does their work, or the loss that a training run adds."""
PLAIN_PRICED = "kernels with plain prices"
"""Fact of a graph: the forward kernels that the programs of their families do not support, one name per line."""
PACKED = 3  # queries, keys and values
TRAINED_AS_ONE = (*POINTWISE, "norm", "attention", "layout")
"""Families whose operands and result have the same number of bundles in training."""
MOST_LAPS = 4  # parts of a sample that go around the cores of a function one after the other
MOST_BANDS = 16  # bands of attention; each has four streams


def plain_priced(graph: KernelGraph) -> frozenset[str]:
    """Return the names of the forward kernels that keep plain prices, because their family's program does not support them."""
    return frozenset(str(graph.facts.get(PLAIN_PRICED, "")).split("\n")) - {""}


def as_links_see(graph: KernelGraph) -> KernelGraph:
    """Return the graph in which kernels with plain prices, and in training those of the host, limit no links, and tensors of
    frozen layers have one."""
    rest = frozen_layers(graph)
    plain = plain_priced(graph).union(kernel.name for kernel in looked_up(graph) if graph.training)
    if not plain | rest:
        return graph
    kernels = (
        dataclasses.replace(one, family=ANY_LINKS)
        if {one.name, one.forward} & plain
        else dataclasses.replace(one, family=ONE_LINK)
        if one.name in rest
        else one
        for one in graph.kernels
    )
    return dataclasses.replace(graph, kernels=tuple(kernels))


def link_attributes(
    graph: KernelGraph,
    limits: Mapping[str, int] = MappingProxyType({}),
    least: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, dict[str, object]]:
    """Return by kernel the words per sample on the busiest link of its streams, and the largest number of
    bundles of its operands: at most that of `limits`, by tensor; and for norms, elementwise work and results of
    layers the smallest one, `least` by tensor."""
    most = {name: min(count, limits.get(name, count)) for name, count in most_bundles(graph).items()}
    least = _tied_least(graph, least)
    out: dict[str, dict[str, object]] = {}
    for kernel in graph.kernels:
        first = next(iter(kernel.inputs), None)
        if first not in most:
            continue
        tensors = [name for name in (*kernel.inputs, *kernel.outputs) if name in most]
        words = max(graph.tensors[name].elements / graph.samples / PAIR / most[name] for name in tensors)
        # The cost of elementwise work includes the links that its operands share, that of others than layers their links.
        own = 0 if _is_as_one(kernel) or kernel.family in IMAGES else round(words)
        out[kernel.name] = {"link_words": own, "most_bundles": most[first]}
        if kernel.family in IMAGES:
            out[kernel.name]["most_results"] = most[kernel.outputs[0]]
        if is_pointwise(kernel.family) or kernel.family == "layout":
            out[kernel.name]["token_words"] = token_words(graph, kernel.outputs[0])
        if kernel.family in IMAGES:
            ends = {"least_bundles": first, "least_results": kernel.outputs[0]}
            out[kernel.name] |= {key: least[name] for key, name in ends.items() if least.get(name, 0) > 1}
        needed = kernel.outputs if kernel.family == "gemm" else tensors
        is_wide = _is_as_one(kernel) or kernel.family == "gemm"
        if is_wide and (fewest := max((least.get(name, 0) for name in needed), default=0)):
            out[kernel.name]["least_bundles"] = fewest
        if kernel.family == "attention":
            fewest = min(most.get(name, 1) for name in (*kernel.inputs, *kernel.outputs))
            out[kernel.name]["bands"] = min(bands_of(graph, kernel), fewest)
        if kernel.family == "gemm" and len(kernel.inputs) > 1:
            out[kernel.name]["most_residuals"] = most.get(kernel.inputs[1], 1)
    return out


def packed_tensors(graph: KernelGraph) -> set[str]:
    """Return tensors with queries, keys and values in one: on the fabric three layers make them, each with
    its own links."""
    attention = [kernel for kernel in graph.kernels if kernel.family == "attention"]
    return {kernel.inputs[0] for kernel in attention if len(kernel.inputs) == 1}


def most_bundles(graph: KernelGraph) -> dict[str, int]:
    """Return the largest number of bundles by tensor."""
    found: dict[str, int] = {}
    for name in {name for kernel in graph.kernels for name in (*kernel.inputs, *kernel.outputs)}:
        words = _words_of(graph, name)
        ends = [kernel for kernel in graph.kernels if name in (*kernel.inputs, *kernel.outputs)]
        is_split = words and all(_splits(graph, kernel, name) for kernel in ends)
        found[name] = words if is_split else 1
    found |= dict.fromkeys(packed_tensors(graph) & set(found), PACKED)
    for kernel in graph.kernels:
        if kernel.family == "attention":
            bands, parts = bands_of(graph, kernel), PACKED if len(kernel.inputs) == 1 else 1
            found |= dict.fromkeys(set(kernel.inputs) & set(found), bands * parts)
            found |= dict.fromkeys(set(kernel.outputs) & set(found), bands)
    parted = {name for kernel in graph.kernels if kernel.family in OF_ROWS for name in kernel.inputs}
    for names in groups_of(_tied(graph)):
        words = gcd(*(_words_of(graph, name) for name in parted.intersection(names)))
        found |= dict.fromkeys(names, _most(words, min(found[name] for name in names)))
    return found


def groups_of(ties: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the groups of tensors that have the same number of bundles, from ties of some of them."""
    graph = nx.Graph()
    for names in ties:
        nx.add_path(graph, names)
    return [tuple(sorted(group)) for group in nx.connected_components(graph)]


def _tied(graph: KernelGraph) -> list[tuple[str, ...]]:
    """Return the tensors that have the same number of bundles in inference, by the kernels that tie them."""
    return [
        (*kernel.inputs, *kernel.outputs) for kernel in graph.kernels if _is_as_one(kernel) and kernel.inputs
    ]


def trained_bundles(graph: KernelGraph) -> dict[str, int]:
    """Return the largest number of bundles by tensor in training: one per word of a token if all kernels that make and
    read it take bundles; 1 elsewhere, and for the output of a dense layer, which the loss receives at one core."""
    found = {}
    forward = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    for name in {name for kernel in forward for name in (*kernel.inputs, *kernel.outputs)}:
        ends = [kernel for kernel in forward if name in (*kernel.inputs, *kernel.outputs)]
        is_split = any(name in kernel.inputs or _is_tied(kernel) for kernel in ends)
        is_split = is_split and not is_image(graph, name)
        is_split = is_split and all(_splits_in_training(graph, kernel, name) for kernel in ends)
        found[name] = int(ceil_div(features_of(graph, name), PAIR)) if is_split else 1
    for kernel in forward:
        if kernel.family == "attention":
            bands, names = (
                bands_of(graph, kernel, partial(_splits_in_training, graph)),
                (*kernel.inputs, *kernel.outputs),
            )
            found |= dict.fromkeys(names, bands if all(found[name] > 1 for name in names) else 1)
    for names in groups_of(tied_in_training(graph)):
        found |= dict.fromkeys(names, min(found[name] for name in names))
    return found


def tied_in_training(graph: KernelGraph) -> list[tuple[str, ...]]:
    """Return groups of tensors that have the same number of bundles in training, by the kernels that tie them."""
    forward = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    return [(*kernel.inputs[_adds(kernel) :], *kernel.outputs) for kernel in forward if _is_tied(kernel)]


def trained_attributes(graph: KernelGraph) -> dict[str, dict[str, object]]:
    """Return by norm, elementwise kernel and attention, and their passes, the largest number of bundles in training, and
    the readers of its result."""
    most, out = trained_bundles(graph), dict[str, dict[str, object]]()
    forward = {kernel.name: kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD}
    followed = {kernel.forward for kernel in graph.kernels if kernel.phase is Phase.INPUT_GRADIENT}
    for kernel in graph.kernels:
        owner = forward.get(kernel.forward, kernel)
        if owner.family == kernel.family and kernel.family in TRAINED_AS_ONE and owner.name in forward:
            result = owner.outputs[0]
            readers = max(1, readers_of(graph, result))
            links = "bands" if kernel.family == "attention" else "most_bundles"
            out[kernel.name] = {links: most[result], "readers": readers}
            if kernel.family == "norm":
                out[kernel.name]["passes_on"] = owner.name in followed
            if kernel.family in (*POINTWISE, "layout"):
                out[kernel.name]["token_words"] = token_words(graph, result)
                if kernel.family == "generated" and len(owner.inputs) == 1 and not owner.parameters:
                    words = token_words(graph, result)
                    whole, rest = divmod(graph.tensors[result].elements // graph.samples, PAIR * words)
                    out[kernel.name]["laps"] = 1 if rest else gcd(whole, MOST_LAPS)
    return out


def readers_of(graph: KernelGraph, tensor: str) -> int:
    """Return the number of kernels that read a tensor in the forward pass."""
    return sum(tensor in kernel.inputs for kernel in graph.kernels if kernel.phase is Phase.FORWARD)


def _is_tied(kernel: Kernel) -> bool:
    """Return whether a kernel has as many bundles of operands as of its result in training."""
    return kernel.family in TRAINED_AS_ONE or _adds(kernel)


def _adds(kernel: Kernel) -> bool:
    """Return whether a dense layer adds a residual."""
    return kernel.family == "gemm" and "residual" in items_of(kernel)


def _splits_in_training(graph: KernelGraph, kernel: Kernel, tensor: str) -> bool:
    """Return whether a kernel takes or gives a tensor in bundles in training."""
    if kernel.family == "norm":
        return heads_of(graph, kernel) == 1
    if kernel.family == "attention":
        return len(set(kernel.inputs)) == PACKED
    if kernel.family == "gemm":
        return kernel.inputs.count(tensor) < 2
    return kernel.family in (*TRAINED_AS_ONE, *WITHOUT_PROGRAM)


def _tied_least(graph: KernelGraph, least: Mapping[str, int]) -> dict[str, int]:
    """Return the smallest numbers of bundles with those of the tensors that must have as many."""
    found = dict(least)
    for names in groups_of(_tied(graph)) if least else ():
        if most := max(found.get(name, 0) for name in names):
            found |= dict.fromkeys(names, most)
    return found


def bands_of(graph: KernelGraph, kernel: Kernel, splits: Splits | None = None) -> int:
    """Return the bands of heads of attention: 1 unless dense layers or rotations make all its operands, and dense layers
    read its result."""
    heads, width = int(kernel.dims.get("kv_heads", kernel.dims["heads"])), int(kernel.dims["d"])
    names = {*kernel.inputs, *kernel.outputs}
    splits = splits or partial(_splits, graph)
    others = [one for one in graph.kernels if one is not kernel and one.phase is Phase.FORWARD]
    made = {name for one in others for name in one.outputs}
    ends = [(one, name) for one in others for name in names.intersection((*one.inputs, *one.outputs))]
    is_split = all(
        (one.family in ("gemm", ANY_LINKS) or has_work(one.family)) and splits(one, name)
        for one, name in ends
    )
    is_split &= names <= made | set(kernel.outputs)
    return _most(heads, MOST_BANDS) if is_split and width % PAIR == 0 else 1


def _splits(graph: KernelGraph, kernel: Kernel, tensor: str) -> bool:
    """Return whether a kernel takes or gives a tensor in bundles; a dense layer that reads it twice, or an image, does not."""
    has_pixels = is_image(graph, tensor)
    if kernel.family == "gemm":
        return kernel.inputs.count(tensor) < 2 and not (has_pixels and tensor in kernel.inputs)
    if kernel.family == "norm":
        return heads_of(graph, kernel) == 1
    if kernel.family in ("layout", *WITHOUT_PROGRAM):
        return True
    features = graph.tensors[tensor].shape[1] if has_pixels else features_of(graph, tensor)
    return (kernel.family in ("softmax", *IMAGES) or is_pointwise(kernel.family)) and features % PAIR == 0


def _words_of(graph: KernelGraph, tensor: str) -> int:
    """Return the words of the last dimension of a tensor, or of a pixel of an image."""
    if is_image(graph, tensor):
        return token_words(graph, tensor)
    return int(ceil_div(features_of(graph, tensor), PAIR))


def _is_as_one(kernel: Kernel) -> bool:
    """Return whether the operands and the result of a kernel have the same number of bundles."""
    return kernel.family in (*OF_ROWS, "layout") or is_pointwise(kernel.family)


def _most(words: int, limit: int) -> int:
    return next(count for count in range(limit, 0, -1) if words % count == 0)
