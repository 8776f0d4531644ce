"""Split a product whose result is read in parts into one product per part: a region has one inlet per
operand.

``torch.nn.MultiheadAttention`` has one weight of (3 E, K) for queries, keys and values, W = [W_q; W_k; W_v].
The products with W_q, W_k and W_v give the same numbers from three regions. All three read the same input,
which the routers multicast. Gated layers often make gate and values the same way (``chunk``, slices,
``glu``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.factors import PARTS, affine_values
from wse_sim.whole.front import with_kernels
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.fused import items_of

COUNTS = {2: "two", 3: "three", 4: "four"}
"""Numbers of parts into which a product may be split, and the words for them."""
SLICE = re.compile(r"(?P<whole>.+)\[(?P<first>\d+):(?P<end>\d+)\]")
"""Pattern of a parameter's slice of rows, in Python notation."""
TURNED = ".T"
"""Suffix of the name of a transposed weight."""


def unpacked(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with each product that is read in parts replaced by one product per part; a
    note names them.

    A product is split if it has a weight (N, K), at most a bias, and one reader: attention that reads three
    consecutive slices (`packed`), or elementwise work on parts. The parameters of the parts are named as
    slices: ``in_proj_weight[0:32]``.
    """
    if not any(_parts_of(graph, kernel) for kernel in graph.kernels):
        return graph
    tensors = dict(graph.tensors)
    kernels = list(graph.kernels)
    notes: list[str] = []
    for reader in graph.kernels:
        names = _parts_of(graph, reader)
        product = next((kernel for kernel in kernels if names and reader.inputs[0] in kernel.outputs), None)
        if product is None or not _comes_apart(graph, product):
            continue
        lie = names if reader.family == "attention" else sorted(names)
        parts = {name: _part(product, name, (i, len(names)), tensors) for i, name in enumerate(lie)}
        place = kernels.index(product)
        kernels[place : place + 1] = parts.values()
        inputs = tuple(parts[name].outputs[0] for name in names)
        kernels[kernels.index(reader)] = _reader_of(reader, inputs, tensors)
        what = (
            "queries, keys and values"
            if reader.family == "attention"
            else f"the {len(names)} parts of '{reader.name}'"
        )
        notes.append(
            f"'{product.name}' makes {what} in one product; on the fabric these are {COUNTS[len(names)]} layers"
        )
    return with_kernels(graph, kernels, tensors, *notes)


def _parts_of(graph: KernelGraph, reader: Kernel) -> tuple[str, ...]:
    """Return the names of the parts that a kernel reads of one tensor, in operand order; sorted names give
    the order in the tensor."""
    if reader.phase is not Phase.FORWARD or len(reader.inputs) != 1:
        return ()
    if reader.family == "attention":
        return PARTS if reader.attrs.get("packed", False) else ()
    if reader.family == "activation" and reader.attrs["function"] == "glu":
        whole, result = (graph.tensors[name].shape for name in (reader.inputs[0], reader.outputs[0]))
        return ("part1", "part0") if whole == (*result[:-1], 2 * result[-1]) else ()
    is_covered = reader.family in POINTWISE and len(reader.parts) in COUNTS
    return tuple(f"part{number}" for number in reader.parts) if is_covered else ()


def _reader_of(reader: Kernel, inputs: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Kernel:
    """Return the reader of the parts; ``glu`` becomes the sigmoid of one part times the other."""
    if reader.family == "activation":
        result = tensors[reader.outputs[0]]
        cols = result.shape[-1]
        dims = {"elements": result.elements, "rows": result.elements // cols, "cols": cols}
        attrs = {"ops": "sigmoid,mul", "inputs": 2}
        reader = dataclasses.replace(reader, family="generated", dims=frozen(dims), attrs=frozen(attrs))
    attrs = {name: value for name, value in reader.attrs.items() if name != "packed"}
    return dataclasses.replace(reader, inputs=inputs, attrs=frozen(attrs), reordered=(), parts=(), takes=())


def turned(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with weights stored as (K, N) transposed to (N, K), as in torch.nn.Linear:
    ``weight.T``."""
    tensors, kernels = dict(graph.tensors), []
    for kernel in graph.kernels:
        weight = kernel.takes[0] if kernel.family == "gemm" and kernel.takes else ""
        if not weight or set(kernel.reordered) != {weight} or kernel.parameters[0] != weight:
            kernels.append(kernel)
            continue
        name, whole = weight + TURNED, tensors[weight]
        tensors[name] = dataclasses.replace(whole, name=name, shape=whole.shape[::-1])
        parameters = (name, *kernel.parameters[1:])
        kernels.append(dataclasses.replace(kernel, parameters=parameters, reordered=(), takes=()))
    return with_kernels(graph, kernels, tensors) if kernels != list(graph.kernels) else graph


def _comes_apart(graph: KernelGraph, product: Kernel) -> bool:
    """Return whether a product has one weight (N, K), at most a bias, and exactly one reader."""
    readers = [kernel for kernel in graph.kernels if product.outputs[0] in kernel.inputs]
    if product.family != "gemm" or len(readers) > 1 or not set(items_of(product)) <= {"bias"}:
        return False
    shape = (int(product.dims["n"]), int(product.dims["k"]))
    is_output = graph.tensors[product.outputs[0]].kind is TensorKind.OUTPUT
    return not is_output and bool(product.parameters) and graph.tensors[product.parameters[0]].shape == shape


def _part(product: Kernel, name: str, place_of: tuple[int, int], tensors: dict[str, Tensor]) -> Kernel:
    """Return part `place` of `count` equal parts of a product, and add its tensors to `tensors`."""
    place, count = place_of
    features = int(product.dims["n"]) // count
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
        flops=product.flops // count,
    )


def with_slices(
    graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return the weights together with the slices, transposes and affine parameters that the graph names."""
    every = dict(weights)
    for name, tensor in graph.tensors.items():
        if (values := affine_values(weights, name)) is not None:
            every[name] = values.reshape(tensor.shape)
        found = SLICE.fullmatch(name)
        whole = found["whole"] if found is not None else name
        if whole.endswith(TURNED) and whole.removesuffix(TURNED) in weights:
            every[whole] = np.asarray(weights[whole.removesuffix(TURNED)]).T
        if found is not None and whole in every:
            every[name] = np.asarray(every[whole])[int(found["first"]) : int(found["end"])]
    return every


def without_slices(values: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Return values by parameter of the module: concatenate slices and undo transposes."""
    out: dict[str, NDArray[np.float32]] = {}
    parts: dict[str, dict[int, NDArray[np.float32]]] = {}
    for name, value in values.items():
        found = SLICE.fullmatch(name)
        if found is None:
            out[name] = value
        else:
            parts.setdefault(found["whole"], {})[int(found["first"])] = value
    out |= {name: np.concatenate([part for _, part in sorted(of.items())]) for name, of in parts.items()}
    return {
        name.removesuffix(TURNED): value.T if name.endswith(TURNED) else value for name, value in out.items()
    }
