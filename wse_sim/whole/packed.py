"""One product for queries, keys and values, taken apart into three: attention on the fabric has an inlet for each.

``torch.nn.MultiheadAttention`` has one weight of (3 E, K) for all three, W = [W_q; W_k; W_v].  The products with W_q, W_k and
W_v give the same numbers from three regions.  Each reads the input of the one, whose words fork in the routers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wse_sim.frontend.repeats import find_repeats
from wse_sim.frontend.training import add_training
from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.regions.dense import items_of

PARTS = ("q", "k", "v")
SLICE = re.compile(r"(?P<whole>.+)\[(?P<first>\d+):(?P<end>\d+)\]")
"""The name of some rows of a parameter, as Python writes them."""


def unpacked(graph: KernelGraph) -> KernelGraph:
    """The graph with three products in the place of each one for queries, keys and values; a note names them.

    Of a graph that trains, the forward kernels are taken apart, and the gradients follow from them by rule.

    Taken apart are products with a weight (N, K), a bias or none, and one reader: attention that is known to read three slices
    one after the other (`packed`).  Parameters of the parts are named as slices: ``in_proj_weight[0:32]``.
    """
    if not any(kernel.attrs.get("packed", False) for kernel in graph.kernels):
        return graph
    if graph.training:
        how = {name: str(graph.facts[name]) for name in ("optimizer", "recompute")}
        return add_training(unpacked(_forward_graph(graph)), **how)
    tensors = dict(graph.tensors)
    kernels = list(graph.kernels)
    notes = list(graph.notes)
    for reader in graph.kernels:
        if reader.family != "attention" or not reader.attrs.get("packed", False):
            continue
        product = next((kernel for kernel in kernels if reader.inputs[0] in kernel.outputs), None)
        if product is None or not _comes_apart(graph, product):
            continue
        parts = tuple(_part(product, name, place, tensors) for place, name in enumerate(PARTS))
        place = kernels.index(product)
        kernels[place : place + 1] = parts
        attrs = {name: value for name, value in reader.attrs.items() if name != "packed"}
        inputs = tuple(part.outputs[0] for part in parts)
        kernels[kernels.index(reader)] = dataclasses.replace(reader, inputs=inputs, attrs=frozen(attrs))
        notes.append(
            f"'{product.name}' makes queries, keys and values in one product; on the fabric these are three layers"
        )
    read = {name for kernel in kernels for name in (*kernel.inputs, *kernel.outputs, *kernel.parameters)}
    lost = {name for kernel in graph.kernels for name in (*kernel.outputs, *kernel.parameters)} - read
    kept = {name: tensor for name, tensor in tensors.items() if name not in lost}
    return dataclasses.replace(
        graph,
        kernels=tuple(kernels),
        tensors=frozen(kept),
        repeats=find_repeats(kernels, kept),
        notes=tuple(notes),
    )


def _forward_graph(graph: KernelGraph) -> KernelGraph:
    """What a graph that trains does forward."""
    kernels = tuple(kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD)
    read = {name for kernel in kernels for name in (*kernel.inputs, *kernel.outputs, *kernel.parameters)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in read}
    return dataclasses.replace(
        graph,
        kernels=kernels,
        tensors=frozen(tensors),
        training=False,
        repeats=find_repeats(kernels, tensors),
    )


def _comes_apart(graph: KernelGraph, product: Kernel) -> bool:
    """Whether a product has one weight (N, K), and attention alone reads what it makes."""
    readers = [kernel for kernel in graph.kernels if product.outputs[0] in kernel.inputs]
    if product.family != "gemm" or len(readers) > 1 or not set(items_of(product)) <= {"bias"}:
        return False
    shape = (int(product.dims["n"]), int(product.dims["k"]))
    is_output = graph.tensors[product.outputs[0]].kind is TensorKind.OUTPUT
    return not is_output and bool(product.parameters) and graph.tensors[product.parameters[0]].shape == shape


def _part(product: Kernel, name: str, place: int, tensors: dict[str, Tensor]) -> Kernel:
    """One third of a product; its tensors go into `tensors`."""
    features = int(product.dims["n"]) // len(PARTS)
    parameters = []
    for whole in product.parameters:
        sliced = f"{whole}[{place * features}:{(place + 1) * features}]"
        tensors[sliced] = dataclasses.replace(
            tensors[whole], name=sliced, shape=(features, *tensors[whole].shape[1:])
        )
        parameters.append(sliced)
    out, before = f"{product.name}.{name}.out", tensors[product.outputs[0]]
    tensors[out] = dataclasses.replace(before, name=out, shape=(*before.shape[:-1], features))
    return dataclasses.replace(
        product,
        name=f"{product.name}.{name}",
        dims=frozen({**product.dims, "n": features}),
        outputs=(out,),
        parameters=tuple(parameters),
        flops=product.flops // len(PARTS),
    )


def with_slices(
    graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """The weights, and the slices of them that the graph names."""
    every = dict(weights)
    for name in graph.tensors:
        found = SLICE.fullmatch(name)
        if found is not None and found["whole"] in weights:
            every[name] = np.asarray(weights[found["whole"]])[int(found["first"]) : int(found["end"])]
    return every


def without_slices(values: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Values by parameter, those of slices put together."""
    out: dict[str, NDArray[np.float32]] = {}
    parts: dict[str, dict[int, NDArray[np.float32]]] = {}
    for name, value in values.items():
        found = SLICE.fullmatch(name)
        if found is None:
            out[name] = value
        else:
            parts.setdefault(found["whole"], {})[int(found["first"])] = value
    return out | {
        name: np.concatenate([part for _, part in sorted(of.items())]) for name, of in parts.items()
    }
