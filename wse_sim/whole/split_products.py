"""Split a product whose result is read in parts into one product per part: a region has one inlet per
operand.

``torch.nn.MultiheadAttention`` has one weight of (3 E, K) for queries, keys and values, W = [W_q; W_k; W_v].
The products with W_q, W_k and W_v give the same numbers from three regions. All three read the same input,
which the routers multicast. Gated layers often make gate and values the same way (``chunk``, slices,
``glu``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.graph import Derived, Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.factors import PARTS
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.fused_work import items_of

COUNTS = {2: "two", 3: "three", 4: "four"}
"""Parts of a product that are separated."""


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
    split: dict[tuple[str, int], list[str]] = {}
    for reader in graph.kernels:
        names = _parts_of(graph, reader)
        product = next((kernel for kernel in kernels if names and reader.inputs[0] in kernel.outputs), None)
        if product is None or not _comes_apart(graph, product):
            continue
        lie = names if reader.family == "attention" else sorted(names)
        each = int(product.dims["n"]) // len(names)
        parts = {
            name: part_of_product(product, name, (i * each, (i + 1) * each), tensors)
            for i, name in enumerate(lie)
        }
        place = kernels.index(product)
        kernels[place : place + 1] = parts.values()
        inputs = tuple(parts[name].outputs[0] for name in names)
        kernels[kernels.index(reader)] = _reader_of(reader, inputs, tensors)
        what = (
            "queries, keys and values"
            if reader.family == "attention"
            else f"the {len(names)} parts of '{reader.name}'"
        )
        split.setdefault((what, len(names)), []).append(product.name)
    notes = (_note(products, what, count) for (what, count), products in split.items())
    return with_kernels(graph, kernels, tensors, *notes)


def _note(products: Sequence[str], what: str, count: int) -> str:
    """Return the sentence on the products that are separated."""
    if len(products) == 1:
        return f"'{products[0]}' makes {what} in one product; on the fabric these are {COUNTS[count]} layers"
    more = len(products) - 1
    return f"'{products[0]}' and {more} more make {what} in one product; on the fabric each becomes {COUNTS[count]} layers"


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
    is_covered = reader.family in POINTWISE and len(reader.access.parts) in COUNTS
    return tuple(f"part{number}" for number in reader.access.parts) if is_covered else ()


def _reader_of(reader: Kernel, inputs: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Kernel:
    """Return the reader of the parts; ``glu`` becomes the sigmoid of one part times the other."""
    if reader.family == "activation":
        result = tensors[reader.outputs[0]]
        cols = result.shape[-1]
        dims = {"elements": result.elements, "rows": result.elements // cols, "cols": cols}
        attrs = {"ops": "sigmoid,mul", "inputs": 2}
        reader = dataclasses.replace(reader, family="generated", dims=frozen(dims), attrs=frozen(attrs))
    attrs = {name: value for name, value in reader.attrs.items() if name != "packed"}
    access = dataclasses.replace(reader.access.without_views(), order=())
    return dataclasses.replace(reader, inputs=inputs, attrs=frozen(attrs), access=access)


def transposed(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with weights of shape (K, N) replaced by ``weight.T`` (N, K), as in
    torch.nn.Linear."""
    tensors, kernels = dict(graph.tensors), []
    for kernel in graph.kernels:
        weight = kernel.access.transposed if kernel.family == "gemm" else ""
        if not weight or set(kernel.access.reordered) != {weight} or kernel.parameters[0] != weight:
            kernels.append(kernel)
            continue
        name, whole = f"{weight}.T", tensors[weight]
        tensors[name] = dataclasses.replace(
            whole, name=name, shape=whole.shape[::-1], derived=Derived("transposed", whole.derived or weight)
        )
        parameters = (name, *kernel.parameters[1:])
        kernels.append(
            dataclasses.replace(kernel, parameters=parameters, access=kernel.access.without_views())
        )
    return with_kernels(graph, kernels, tensors) if kernels != list(graph.kernels) else graph


def _comes_apart(graph: KernelGraph, product: Kernel) -> bool:
    """Return whether a product that can be split has exactly one reader."""
    readers = [kernel for kernel in graph.kernels if product.outputs[0] in kernel.inputs]
    return len(readers) == 1 and product_splits(graph, product)


def product_splits(graph: KernelGraph, product: Kernel) -> bool:
    """Return whether a product has one weight (N, K) and at most a bias, so that its results can be made in parts."""
    if product.family != "gemm" or not set(items_of(product)) <= {"bias"}:
        return False
    shape = (int(product.dims["n"]), int(product.dims["k"]))
    is_output = graph.tensors[product.outputs[0]].kind is TensorKind.OUTPUT
    return not is_output and bool(product.parameters) and graph.tensors[product.parameters[0]].shape == shape


def part_of_product(
    product: Kernel, name: str, features: tuple[int, int], tensors: dict[str, Tensor]
) -> Kernel:
    """Return the part of a product that makes the results from the first of `features` to the end; add its tensors to
    `tensors`."""
    first, end = features
    parameters = []
    for whole in product.parameters:
        sliced = f"{whole}[{first}:{end}]"
        tensors[sliced] = dataclasses.replace(
            tensors[whole],
            name=sliced,
            shape=(end - first, *tensors[whole].shape[1:]),
            derived=Derived("rows", tensors[whole].derived or whole, first, end),
        )
        parameters.append(sliced)
    out, before = f"{product.name}.{name}.out", tensors[product.outputs[0]]
    tensors[out] = dataclasses.replace(before, name=out, shape=(*before.shape[:-1], end - first))
    return dataclasses.replace(
        product,
        name=f"{product.name}.{name}",
        dims=frozen({**product.dims, "n": end - first}),
        outputs=(out,),
        parameters=tuple(parameters),
        flops=product.flops * (end - first) // int(product.dims["n"]),
    )


def with_derived(
    graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return the weights of the module, and the graph's parameters that are derived from them, by name."""
    every = dict(weights)
    for name, tensor in graph.tensors.items():
        if tensor.derived is not None and (value := tensor.derived.value(weights)) is not None:
            every[name] = value.reshape(tensor.shape)
    return every


def without_derived(
    graph: KernelGraph, values: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return values by parameter of the module: parts joined, transposed parameters transposed back, rows as filters."""
    out: dict[str, NDArray[np.float32]] = {}
    parts: dict[str | Derived, dict[int, NDArray[np.float32]]] = {}
    for name, value in values.items():
        derived = graph.tensors[name].derived
        if derived is not None and derived.rule == "rows":
            parts.setdefault(derived.source, {})[derived.first] = value
        else:
            _put(out, derived or name, value)
    for source, cut in parts.items():
        _put(out, source, np.concatenate([part for _, part in sorted(cut.items())]))
    return out


def _put(out: dict[str, NDArray[np.float32]], source: str | Derived, value: NDArray[np.float32]) -> None:
    """Add the value of a parameter to `out` under the module's name for it, transposed back or as filters if needed."""
    while isinstance(source, Derived):
        value = value.reshape(source.shape) if source.rule == "flat" else value.T
        source = source.source
    out[source] = value
