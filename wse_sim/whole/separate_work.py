"""Separate work from the product that it is fused to: a region of elementwise work does it.

``relu(convolution(y) + x)`` is one kernel in the graph. On the fabric the convolution sends its image with
the bias, and an elementwise region adds x, which it buffers (:mod:`wse_sim.whole.regions.pointwise`). A dense layer adds a
residual itself, unless it trains and the residual is its input: a region sends one gradient of a tensor.

The last row of a layer has all its outputs, so one row of cores would apply a slow function for all tokens or pixels. A region of
elementwise work has all its cores for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from wse_sim.graph import PLAIN, Access, Kernel, KernelGraph, Tensor, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.fused_work import items_of

RESIDUAL = "residual"
SUM, ACTIVATION = ".sum", ".function"
"""Name suffixes of the kernels that add a residual and apply a function."""
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
