"""Separate work from the product that it is fused to: a region of elementwise work does it.

``relu(convolution(y) + x)`` is one kernel in the graph. On the fabric the convolution sends its image with
the bias, and an elementwise region adds x, which it buffers (:mod:`wse_sim.whole.regions.pointwise`). A dense layer adds a
residual itself, unless it trains and the residual is its input: a region sends one gradient of a tensor.

The last row of a layer has all its outputs, so one row of cores would apply a slow function for all tokens or pixels. A region of
elementwise work has all its cores for it.

A product of an image with one number per channel (squeeze and excitation) is a region without other operands, because the image
waits until a complete one has given the numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from wse_sim.graph import PLAIN, Access, Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.contract import POINTWISE, is_image, is_pointwise
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.pointwise_place import depth_of, operators_of, shared_operands, taken_by

RESIDUAL = "residual"
SUM, ACTIVATION, SCALED = ".sum", ".function", ".scaled"
"""Name suffixes of the kernels that add a residual, apply a function, and multiply by one number per channel."""
PRODUCTS = ("gemm", "conv2d")
OF_CONVOLUTION = ("bias", "relu")
"""Operations that the program of a convolution does."""
Two = tuple[Kernel, Kernel]


def split_product(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    ends: tuple[str, tuple[str, ...]],
    name: str,
    attrs: Mapping[str, object],
    *,
    family: str = "generated",
    access: Access = PLAIN,
) -> Two:
    """Return the product with fewer fused operations, and a kernel `name` for the others; `ends` are the suffix of the name of
    the product's result, which is added to `tensors`, and the operations that stay with it."""
    (suffix, items), whole = ends, tensors[kernel.outputs[0]]
    between = f"{kernel.name}.{suffix}"
    tensors[between] = dataclasses.replace(whole, name=between, kind=TensorKind.ACTIVATION)
    held = 1 + (RESIDUAL in items)
    stay = {key: value for key, value in kernel.attrs.items() if key != "fused"}
    first = dataclasses.replace(
        kernel,
        inputs=kernel.inputs[:held],
        outputs=(between,),
        attrs=frozen(stay | ({"fused": ",".join(items)} if items else {})),
    )
    dims = {"elements": whole.elements}
    if family == "generated":
        cols = int(kernel.dims["n" if kernel.family == "gemm" else "k"])
        dims |= {"rows": whole.elements // cols, "cols": cols}
    second = dataclasses.replace(
        kernel,
        name=f"{kernel.name}{name}",
        family=family,
        dims=frozen(dims),
        sample_dim="elements",
        inputs=(between, *kernel.inputs[held:]),
        parameters=(),
        attrs=frozen(attrs),
        flops=0,
        saved_bytes=0,
        access=access,
    )
    return first, second


def worked_apart(graph: KernelGraph, *, trains: bool = False) -> KernelGraph:
    """Return the forward graph with fused operations that the program of a product does not do in a separate elementwise
    kernel; notes name the products. A product with a plain price, or whose other kernel would have one, stays one kernel."""
    plain = plain_priced(graph)

    def split(kernel: Kernel, tensors: dict[str, Tensor]) -> Two | None:
        items = items_of(kernel) if kernel.family in PRODUCTS else ()
        place = next((i for i in range(len(items)) if _leaves(kernel, items, i, trains=trains)), len(items))
        stay, rest = items[:place], items[place:]
        adds = RESIDUAL in rest
        if not rest or plain.intersection((kernel.name, f"{kernel.name}{SUM if adds else ACTIVATION}")):
            return None
        if len(rest) == 1 and not adds:
            how: dict[str, object] = {"function": rest[0]}
            return split_product(kernel, tensors, ("sums", stay), ACTIVATION, how, family="activation")
        ops = ",".join("add" if item == RESIDUAL else item for item in rest)
        attrs: dict[str, object] = {"ops": ops, "inputs": 1 + adds} | ({"stored": True} if adds else {})
        ends, access = ("image", stay), kernel.access if adds else PLAIN
        return split_product(kernel, tensors, ends, SUM if adds else ACTIVATION, attrs, access=access)

    tensors, kernels, names = dict(graph.tensors), list[Kernel](), dict[str, list[str]]()
    for kernel in graph.kernels:
        two = split(kernel, tensors)
        kernels += two or (kernel,)
        if two:
            function = two[1].attrs.get("function")
            does = f"applies '{function}'" if function else "adds a residual"
            names.setdefault(does, []).append(kernel.name)
    return with_kernels(graph, kernels, tensors, *separate_notes(names)) if names else graph


def scaled_apart(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph with each product of an image and one number per channel as a kernel whose image waits in stores,
    without the operators and operands that follow; a note names those that were one kernel."""
    plain, tensors, kernels, names = plain_priced(graph), dict(graph.tensors), list[Kernel](), list[str]()
    for kernel in graph.kernels:
        if kernel.name in plain or not is_pointwise(kernel.family) or not shared_operands(graph, kernel):
            kernels.append(kernel)
            continue
        kernels += _scaled(graph, kernel, tensors)
        names += [kernel.name] * (kernels[-1].name == kernel.name and kernels[-1].inputs != kernel.inputs)
    if kernels == list(graph.kernels):
        return graph
    notes = separate_notes({"multiplies by one number per channel": names}) if names else []
    return with_kernels(graph, kernels, tensors, *notes)


def _scaled(graph: KernelGraph, kernel: Kernel, tensors: dict[str, Tensor]) -> tuple[Kernel, ...]:
    """Return a kernel with a shared operand, and one for the rest if it begins with their product."""
    (op, *more), whole = operators_of(kernel), tensors[kernel.outputs[0]]
    taken, shared = taken_by(kernel), shared_operands(graph, kernel)
    dims = frozen(
        {"elements": whole.elements, "rows": whole.elements // whole.shape[1], "cols": whole.shape[1]}
    )
    like = dataclasses.replace(kernel, family="generated", dims=dims, sample_dim="elements")
    is_first = op == "mul" and more and not kernel.access.steps and shared in (taken[:1], taken[1:2])
    if not is_first or kernel.parameters:
        count = len(kernel.inputs) + len(kernel.parameters)
        attrs = {"ops": ",".join((op, *more)), "inputs": count, "stored": True}
        return (dataclasses.replace(like, attrs=frozen(attrs)),)
    name = f"{kernel.name}{SCALED}"
    tensors[name] = dataclasses.replace(whole, name=name, kind=TensorKind.ACTIVATION)
    attrs = {"ops": "mul", "inputs": 2, "stored": True}
    first = dataclasses.replace(
        like, name=name, inputs=taken[:2], outputs=(name,), attrs=frozen(attrs), access=PLAIN
    )
    inputs = (name, *taken[2:])
    attrs = {"ops": ",".join(more), "inputs": len(inputs), "stored": len(inputs) > 1}
    return first, dataclasses.replace(like, inputs=inputs, attrs=frozen(attrs), access=PLAIN)


def with_image_stores(graph: KernelGraph) -> KernelGraph:
    """Return the forward graph in which the prices of elementwise work on several images count the stores in which those wait that
    come over a shorter path."""
    plain, kernels = plain_priced(graph), list[Kernel]()
    for kernel in graph.kernels:
        depths = {depth_of(graph, name) for name in kernel.inputs}
        is_chain = kernel.family in POINTWISE and kernel.name not in plain and "stored" not in kernel.attrs
        if is_chain and len(depths) > 1 and is_image(graph, kernel.outputs[0]):
            count = len(kernel.inputs) + len(kernel.parameters)
            attrs = {"ops": ",".join(operators_of(kernel)), "inputs": count, "stored": True}
            kernel = dataclasses.replace(_of_pixels(kernel, graph.tensors), attrs=frozen(attrs))
        kernels.append(kernel)
    return graph if kernels == list(graph.kernels) else with_kernels(graph, kernels, dict(graph.tensors))


def _of_pixels(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Kernel:
    """Return elementwise work on an image as a generated kernel, whose rows are pixels."""
    whole = tensors[kernel.outputs[0]]
    dims = {"elements": whole.elements, "rows": whole.elements // whole.shape[1], "cols": whole.shape[1]}
    return dataclasses.replace(kernel, family="generated", dims=frozen(dims), sample_dim="elements")


def _leaves(kernel: Kernel, items: Sequence[str], place: int, *, trains: bool) -> bool:
    """Return whether the program of a product leaves a fused operation and those behind it to elementwise work."""
    item, before = items[place], {*items[:place]}
    if kernel.family == "conv2d":
        return item not in OF_CONVOLUTION and (item != RESIDUAL or len(kernel.inputs) == 2)
    if item == RESIDUAL:  # behind ReLU, or of a region that would send two gradients of one tensor
        return "relu" in before or (trains and len({*kernel.inputs}) == 1)
    return item in SPECIAL_FUNCTIONS or (trains and RESIDUAL in before)


def separate_notes(names: Mapping[str, list[str]]) -> list[str]:
    """Return a note for each kind of work that is separated, from the names of the kernels that did it.

    >>> separate_notes({"adds a residual": ["a", "b", "c"]})
    ["'a' and 2 more: each adds a residual; on the fabric a separate region does this"]
    """
    return [
        f"'{all_names[0]}' {f'and {len(all_names) - 1} more: each ' if len(all_names) > 1 else ''}{does}; "
        "on the fabric a separate region does this"
        for does, all_names in names.items()
    ]
