"""Split a product for queries, keys and values into one product for each: a region has one inlet per operand.

``torch.nn.MultiheadAttention`` has one weight of (3 E, K) for queries, keys and values, W = [W_q; W_k; W_v].
The products with W_q, W_k and W_v give the same numbers from three regions. All three read the same input,
which the routers multicast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import ModelError
from wse_sim.graph import Derived, Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.access import Runs, channels_of
from wse_sim.graph.kernel_graph import frozen
from wse_sim.whole.factors import PARTS
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.regions.fused_work import items_of


def unpacked(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with each product that attention reads as three consecutive slices (`packed`) replaced by one product
    per slice; a note names them.

    A product is split if it has a weight (N, K), at most a bias, and one reader. The parameters of the parts are named as
    slices: ``in_proj_weight[0:32]``.
    """
    tensors, kernels, split = dict(graph.tensors), list(graph.kernels), list[str]()
    for reader in graph.kernels:
        is_packed = (
            reader.family == "attention" and len(reader.inputs) == 1 and reader.attrs.get("packed", False)
        )
        product = next(
            (kernel for kernel in kernels if is_packed and reader.inputs[0] in kernel.outputs), None
        )
        if product is None or not _comes_apart(graph, product):
            continue
        each = int(product.dims["n"]) // len(PARTS)
        cuts = enumerate(PARTS)
        parts = [part_of_product(product, name, ((i * each, each, 1),), tensors) for i, name in cuts]
        place = kernels.index(product)
        kernels[place : place + 1] = parts
        kernels[kernels.index(reader)] = dataclasses.replace(
            reader,
            inputs=tuple(part.outputs[0] for part in parts),
            attrs=frozen({name: value for name, value in reader.attrs.items() if name != "packed"}),
            access=dataclasses.replace(reader.access.without_views(), order=()),
        )
        split.append(product.name)
    return with_kernels(graph, kernels, tensors, _note(split)) if split else graph


def _note(products: Sequence[str]) -> str:
    """Return the sentence on the products that are separated."""
    name, *more = products
    if not more:
        return f"'{name}' makes queries, keys and values in one product; on the fabric these are three layers"
    return f"'{name}' and {len(more)} more make queries, keys and values in one product; on the fabric each becomes three layers"


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


def part_of_product(product: Kernel, name: str, features: Runs, tensors: dict[str, Tensor]) -> Kernel:
    """Return the part of a product that makes some of its results, in the order of `features`; add its tensors to `tensors`."""
    count, (first, *_) = sum(size for _, size, _ in features), features[0]
    label = f"{first}:{first + count}" if features == ((first, count, 1),) else name
    parameters = []
    for whole in product.parameters:
        sliced = f"{whole}[{label}]"
        tensors[sliced] = dataclasses.replace(
            tensors[whole],
            name=sliced,
            shape=(count, *tensors[whole].shape[1:]),
            derived=Derived(
                "taken",
                tensors[whole].derived or whole,
                taken=((0, features),),
                shape=tensors[whole].shape,
            ),
        )
        parameters.append(sliced)
    out, before = f"{product.name}.{name}.out", tensors[product.outputs[0]]
    tensors[out] = dataclasses.replace(before, name=out, shape=(*before.shape[:-1], count))
    return dataclasses.replace(
        product,
        name=f"{product.name}.{name}",
        dims=frozen({**product.dims, "n": count}),
        outputs=(out,),
        parameters=tuple(parameters),
        flops=product.flops * count // int(product.dims["n"]),
    )


def with_derived(
    graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return the weights of the module, and the graph's parameters that are derived from them, by name.

    Raises
    ------
    ModelError
        If a weight has another shape than the one of the graph.
    """
    every = dict(weights)
    for name, tensor in graph.tensors.items():
        if tensor.derived is None:
            if (
                tensor.kind is TensorKind.PARAMETER
                and name in weights
                and np.size(weights[name]) != tensor.elements
            ):
                raise _other_shape(name, np.shape(weights[name]), tensor.shape)
            continue
        source = _checked_source(tensor.derived, weights)
        try:
            value = tensor.derived.value(weights)
            every |= {} if value is None else {name: value.reshape(tensor.shape)}
        except (ValueError, IndexError) as fault:
            raise _other_shape(source, np.shape(weights[source]), tensor.shape) from fault
    return every


def _checked_source(derived: Derived, weights: Mapping[str, NDArray[np.float32]]) -> str:
    """Return the parameter of the module from which another one follows.

    Raises
    ------
    ModelError
        If it has another shape than the rule states.
    """
    if isinstance(derived.source, Derived):
        return _checked_source(derived.source, weights)
    found = np.shape(weights.get(derived.source, ()))
    if derived.source in weights and derived.shape and found != derived.shape:
        raise _other_shape(derived.source, found, derived.shape)
    return derived.source or f"{derived.module}.weight".lstrip(".")


def _other_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> ModelError:
    return ModelError(
        f"parameter '{name}' has shape {found}, but the plan is of a model with {wanted}; give the model that the plan was made from, "
        "and let a factory make the same one at every call"
    )


def without_derived(
    graph: KernelGraph, values: Mapping[str, NDArray[np.float32]], *, are_gradients: bool = False
) -> dict[str, NDArray[np.float32]]:
    """Return values or gradients by parameter of the module: parts joined, transposed parameters transposed back, rows as filters,
    numbers subtracted that were added."""
    found: dict[str | Derived, NDArray[np.float32]] = {
        graph.tensors[name].derived or name: value for name, value in values.items()
    }
    while derived := [one for one in found if isinstance(one, Derived)]:
        deepest = max(derived, key=_depth)
        value = found.pop(deepest)
        if deepest.rule == "copy":
            found[deepest.module] = value
            continue
        if deepest.rule == "raised":
            found[deepest.source] = value if are_gradients else value - np.float32(deepest.epsilon)
            continue
        if deepest.rule != "taken":
            found[deepest.source] = value.reshape(deepest.shape) if deepest.rule == "flat" else value.T
            continue
        whole = found.setdefault(deepest.source, np.zeros(deepest.shape, value.dtype))
        places = {axis: channels_of(runs) for axis, runs in deepest.taken}
        cut = np.ix_(*(places.get(axis, np.arange(size)) for axis, size in enumerate(whole.shape)))
        whole[cut] = value.reshape(whole[cut].shape)
    return {name: value for name, value in found.items() if isinstance(name, str)}


def _depth(derived: Derived) -> int:
    """Return by how many rules a parameter follows from one of the module."""
    return 1 + (_depth(derived.source) if isinstance(derived.source, Derived) else 0)
